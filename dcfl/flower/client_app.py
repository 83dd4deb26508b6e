"""What runs on a Flower node: decode, train, encode. A round is one message.

What the site itself decides is in its node config: see node_config.py.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dcfl import config
from dcfl.client import frozen
from dcfl.engines.allocator import keep_freed_memory
from dcfl.engines.placement import choose_devices
from dcfl.engines.runner import ClientRunner, client_runner, reproducible
from dcfl.errors import CheckpointError, ClientFailure, ConfigError, ProtocolMismatch, SiteRefusal
from dcfl.evaluation import Score, score, scored_parts
from dcfl.experiment import Experiment
from dcfl.flower import codec
from dcfl.flower.app_code import run_app_code
from dcfl.flower.codec import Claim, Task
from dcfl.flower.node_config import NodeConfig
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.site_failures import LoggedFailure, failure_of
from dcfl.models import FeatureModel
from dcfl.models.personal import personal_and_rest, unsent_tensors
from dcfl.privacy import at_site
from dcfl.scores import scores_of
from dcfl.server.validation import check_like
from dcfl.system.printable import printable_lines
from dcfl.system.transfers import to_host
from dcfl.tensors import load, split


@dataclass(frozen=True)
class Site:
    """What a node needs to serve its clients."""

    runner: ClientRunner
    memories: NodeMemories
    threads: int
    # Whether the weights that no message has come from the server, when this node joins.
    awaits_unsent: bool = False


SiteOf = Callable[[Context], Site]  # called for each message; it may cache its result
Handler = Callable[[SiteOf, Task, Message, Context], RecordDict]


def client_app(site_of: SiteOf, reveal: bool = False) -> ClientApp:
    """`reveal` what exactly went wrong: not to a server elsewhere."""
    app = ClientApp()
    app.query("whoami")(partial(_answered, _whoami, site_of, reveal))
    app.query("forget")(partial(_answered, _forget, site_of, reveal))
    app.train()(partial(_answered, _train, site_of, reveal))
    app.evaluate()(partial(_answered, _evaluate, site_of, reveal))
    app.evaluate("scores")(partial(_answered, _all_scores, site_of, reveal))
    app.evaluate("personal")(partial(_answered, _personal_scores, site_of, reveal))
    return app


def _answered(
    handle: Handler, site_of: SiteOf, reveal: bool, message: Message, context: Context
) -> Message:
    """Whatever goes wrong, the server gets a short code and the log here an explanation: Flower
    would send the whole text of an exception."""
    task = Task("", 0, 0)
    try:
        task = codec.read_task(message.content)
        content = handle(site_of, task, message, context)
    except ClientFailure as failure:
        # Its reason names the line; a traceback would only show this file.
        content = _failed(task, failure, reveal, context)
    except Exception as error:
        print(printable_lines(traceback.format_exc()), file=sys.stderr)
        content = _failed(task, failure_of(task.client, error), reveal, context)
    return Message(content, reply_to=message)


def _failed(task: Task, failure: ClientFailure, reveal: bool, context: Context) -> RecordDict:
    print(LoggedFailure(failure.code, failure.reason).line, file=sys.stderr)
    place = None
    with suppress(SiteRefusal):
        place = NodeConfig.read(context.node_config).partition_id
    return codec.failure_content(task, failure, reveal, place)


def _whoami(site_of: SiteOf, task: Task, message: Message, context: Context) -> RecordDict:
    """Also a first check that nothing is missing here, and the only message with weights that are
    frozen or personal."""
    node = NodeConfig.read(context.node_config)
    site = site_of(context)
    if site.awaits_unsent:
        unsent = codec.decode(message.content.get("unsent"))
        check_like(unsent, unsent_tensors(site.runner.model), "frozen or personal weights")
        site.memories.save_unsent(task.run, unsent)
    images = _test_images(site.runner)
    return codec.claim_content(task, Claim(node.partition_id, node.num_partitions, images))


def _forget(site_of: SiteOf, task: Task, message: Message, context: Context) -> RecordDict:
    NodeMemories(NodeConfig.read(context.node_config).memories_folder).forget(task.run)
    return codec.task_content(task)


def _train(site_of: SiteOf, task: Task, message: Message, context: Context) -> RecordDict:
    site = _complete(site_of(context), task)
    broadcast = codec.read_broadcast(message.content, task)
    memory = site.memories.load(task)
    here = site.runner.here
    broadcast = replace(broadcast, weights=here(broadcast.weights), shared=here(broadcast.shared))
    with reproducible(site.threads):
        reply, memory_after = site.runner.train(broadcast, task.client, memory or {})
    if isinstance(reply, ClientFailure):
        raise reply
    if memory is None:
        reply = replace(reply, metrics={**reply.metrics, "memory_lost": 1.0})
    site.memories.save(task, memory_after)
    return codec.update_content(task, reply, has_memory=bool(memory_after))


def _evaluate(site_of: SiteOf, task: Task, message: Message, context: Context) -> RecordDict:
    """The model on this site's own test images."""
    site = _complete(site_of(context), task)
    dataset = site.runner.data.dataset
    with reproducible(site.threads):
        model = _sent_model(site, message)
        scores = [score(model, dataset, *part) for part in scored_parts(dataset)]
    right = [sum(counts) for counts in zip(*(part.right for part in scores), strict=True)]
    losses = [loss for part in scores for loss in part.losses]
    images = _test_images(site.runner)
    return codec.score_content(task, Score(right or [0] * dataset.classes, losses), images)


def _all_scores(site_of: SiteOf, task: Task, message: Message, context: Context) -> RecordDict:
    """Of the final model: more than the few numbers that every round asks for."""
    return _scored(_complete(site_of(context), task), task, message)


def _personal_scores(site_of: SiteOf, task: Task, message: Message, context: Context) -> RecordDict:
    """Of the final model with this client's own personal part."""
    site = _complete(site_of(context), task)
    memory = site.memories.load(task)
    if not memory or not site.runner.personal:
        raise ClientFailure(task.client, "its personal part is lost")
    own, _ = personal_and_rest(memory)
    return _scored(replace(site, runner=replace(site.runner, personal=own)), task, message)


def _scored(site: Site, task: Task, message: Message) -> RecordDict:
    dataset = site.runner.data.dataset
    with reproducible(site.threads):
        model = _sent_model(site, message)
        scores = scores_of(model, dataset.test, dataset.preparation, dataset.classes)
    return codec.scores_content(task, scores)


def _sent_model(site: Site, message: Message) -> FeatureModel:
    """The global model, with the site's personal part: the one that everybody began with, or its
    own."""
    sent = codec.decode(message.content.get("weights"))
    return frozen(site.runner.model, site.runner.here({**site.runner.personal, **sent}))


def _complete(site: Site, task: Task) -> Site:
    """With the weights that came when this node joined the run."""
    if not site.awaits_unsent:
        return site
    try:
        kept = site.memories.load_unsent(task.run)
    except CheckpointError as error:
        raise ClientFailure(task.client, str(error), "unsent") from error
    model = site.runner.model
    load(model, site.runner.here(kept), optional=model.state_dict().keys() - kept.keys())
    personal, _ = split(kept, site.runner.personal)
    return replace(site, runner=replace(site.runner, personal=personal))


def _test_images(runner: ClientRunner) -> list[int]:
    """Per class."""
    dataset = runner.data.dataset
    labels = to_host({"test": dataset.test.labels})["test"]
    images: list[int] = torch.bincount(labels, minlength=dataset.classes).tolist()
    return images


def site_from_config(context: Context) -> Site:
    """For a SuperNode: what the run's config says, as far as this node's own config allows it."""
    node = NodeConfig.read(context.node_config)
    for line in run_app_code(str(context.run_config.get("code", "")), node.code_sha256):
        print(line, file=sys.stderr)  # the site's log
    experiment = _experiment(context).seeded
    # Initial weights are the server's to read: it sends them, and a run opens no file of a site's.
    model = replace(experiment.model, weights="", weights_skip=())
    privacy = at_site(experiment.privacy, node.privacy_noise)
    experiment = replace(experiment, model=model, privacy=privacy)
    dataset, partition = node.load(experiment.data)
    runner = client_runner(experiment, dataset, partition)
    keep_freed_memory()
    device = choose_devices(experiment.engine.device)[0]
    memories = NodeMemories(node.memories_folder)
    awaits_unsent = bool(unsent_tensors(runner.model))
    return Site(runner.on(device), memories, experiment.engine.threads, awaits_unsent)


def _experiment(context: Context) -> Experiment:
    """What the server's dcfl could read, the same version can read here."""
    try:
        return config.from_toml(str(context.run_config["experiment"]))
    except ConfigError as error:
        raise ProtocolMismatch(str(error)) from error


app = client_app(site_from_config)
