"""What runs on a Flower node: decode, train, encode. A round is one message.

What the site itself decides is in its node config: see node_config.py.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dcfl import config
from dcfl.central_noise import NoisySum
from dcfl.client import frozen
from dcfl.data.augment import measured
from dcfl.data.datasets import Images
from dcfl.engines.placement import choose_devices
from dcfl.engines.runner import ClientRunner, client_runner, reproducible
from dcfl.errors import (
    CheckpointError,
    ClientFailure,
    ConfigError,
    ProtocolMismatch,
    SiteRefusal,
    StorageError,
)
from dcfl.evaluation import Score, score, scored_parts
from dcfl.experiment import Experiment
from dcfl.flower import codec
from dcfl.flower.app_code import run_app_code
from dcfl.flower.app_pin import RUNNING_APP, require_guard
from dcfl.flower.codec import Claim, SiteStatistics, Task
from dcfl.flower.node_config import NodeConfig
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.secure.member import Member
from dcfl.flower.site_failures import REFUSED, LoggedFailure, Refusal, failure_of
from dcfl.flower.site_rules import (
    ASKS_STATISTICS,
    LENDS,
    LENT,
    PERSONAL,
    Answer,
    Question,
    Release,
    SiteRules,
)
from dcfl.flower.withholding import (
    CLASS_COUNTS,
    SCORES,
    SIZES,
    STATISTICS,
    UPDATES,
    disclosed_update,
)
from dcfl.messages import Tensors
from dcfl.models import FeatureModel
from dcfl.models.parts import personal_and_rest, unsent_tensors
from dcfl.privacy import at_site
from dcfl.scores import scores_of
from dcfl.server.fixed_point import FixedPoint
from dcfl.server.validation import check_like
from dcfl.system.memory import keep_freed_memory
from dcfl.system.transfers import to_host
from dcfl.system.wording import printable, printable_lines
from dcfl.tensors import load, split


@dataclass(frozen=True)
class Site:
    """What a node needs to serve its clients."""

    runner: ClientRunner
    memories: NodeMemories
    threads: int
    # Whether the weights that no message has come from the server, when this node joins.
    awaits_unsent: bool = False
    rules: SiteRules = SiteRules()
    release: Release = Release()  # of an update

    @property
    def hides_size(self) -> bool:
        """Whether its replies count as one image each, or never come."""
        protected = self.runner.protection or self.runner.fixed_point
        return bool(protected or self.rules.withheld & {SIZES, UPDATES})


SiteOf = Callable[[Context, Task], Site]  # called for each message; it may cache its result
RulesOf = Callable[[Context], SiteRules]
Handler = Callable[[SiteOf, Task, Message, Context], Answer]


@dataclass(frozen=True)
class Desk:
    """Where a node's messages are answered."""

    site_of: SiteOf
    rules_of: RulesOf = lambda context: SiteRules()
    reveal: bool = False  # what exactly went wrong: not to a server elsewhere

    def app(self) -> ClientApp:
        """Flower refuses all other types of messages; `train.default` is the same as `train`."""
        app = ClientApp()
        for kind, handle in HANDLERS.items():
            category, _, action = kind.partition(".")
            register = getattr(app, category)(action or "default")
            register(partial(self._answered, kind, handle))
        return app

    def _answered(self, kind: str, handle: Handler, message: Message, context: Context) -> Message:
        """Whatever goes wrong, the server gets a short code and the log here an explanation: Flower
        would send the whole text of an exception."""
        rules, question = SiteRules(), Question(kind, Task("", 0, 0))
        try:
            rules = self.rules_of(context)
            question = question._replace(task=codec.read_task(message.content))
            rules.check(question)
            answer = handle(self.site_of, question.task, message, context)
            content = codec.with_record(answer.content, rules.record(question, answer))
        except Exception as error:
            content = self._failed(rules, question, error, context)
        return Message(content, reply_to=message)

    def _failed(
        self, rules: SiteRules, question: Question, error: Exception, context: Context
    ) -> RecordDict:
        failure = _failure(question.task, error)
        content = codec.failure_content(question.task, failure, self.reveal, _place(context))
        try:
            return codec.with_record(content, rules.record_failure(question, failure, content))
        except SiteRefusal as refusal:  # others took the last that was allowed meanwhile
            return self._failed(rules, question, refusal, context)
        except StorageError as unwritten:
            return self._failed(SiteRules(), question, unwritten, context)


def client_app(site_of: SiteOf, reveal: bool = False) -> ClientApp:
    """The app of nodes without rules of their own."""
    return Desk(site_of, reveal=reveal).app()


def refused_app(node_config: Mapping[str, object], kind: str, refusal: SiteRefusal) -> None:
    """For a SuperNode that has refused an app: into its log, and into the site's record."""
    question = Question(kind, Task("", 0, 0))
    with suppress(SiteRefusal, StorageError):
        rules = NodeConfig.read(node_config).rules
        rules.record_failure(question, _failure(question.task, refusal), RecordDict())


def _failure(task: Task, error: Exception) -> ClientFailure:
    if isinstance(error, ClientFailure):
        failure = error  # its reason names the line; a traceback would only show this file
    else:
        failure = failure_of(task.client, error)
        if failure.code != REFUSED:  # which is a decision, and no mistake
            print(printable_lines(traceback.format_exc()), file=sys.stderr)
    print(LoggedFailure(failure.code, failure.reason).line, file=sys.stderr)
    return failure


def _place(context: Context) -> int | None:
    with suppress(SiteRefusal):
        return NodeConfig.read(context.node_config).place
    return None


def _whoami(site_of: SiteOf, task: Task, message: Message, context: Context) -> Answer:
    """Also a first check that nothing is missing here, and the only message with weights that are
    frozen or personal."""
    node = NodeConfig.read(context.node_config)
    site = site_of(context, task)
    site.rules.check_release(task, site.release)
    if site.awaits_unsent:
        unsent = codec.decode(message.content.get("unsent"))
        check_like(unsent, unsent_tensors(site.runner.model), "frozen or personal weights")
        site.memories.save_unsent(task.run, unsent)
    withheld = site.rules.withheld
    images = [] if SCORES in withheld else _test_images(site.runner)
    broken = 0 if CLASS_COUNTS in withheld else site.runner.data.dataset.broken
    examples = 1 if site.hides_size else int(site.runner.data.sizes[task.client])
    number, lends = node.num_partitions or None, site.rules.lends
    claim = Claim(node.place, number, images, withheld, broken, examples, lends)
    return Answer(codec.claim_content(task, claim))


def _forget(site_of: SiteOf, task: Task, message: Message, context: Context) -> Answer:
    NodeMemories(NodeConfig.read(context.node_config).memories_folder).forget(task.run)
    return Answer(codec.message(task))


def _statistics(site_of: SiteOf, task: Task, message: Message, context: Context) -> Answer:
    """Of this site's training images, before anything is trained."""
    site = site_of(context, task)
    withheld, images = site.rules.withheld, _training_images(site, task)
    classes = site.runner.data.dataset.classes
    counts: list[int] = torch.bincount(images.labels, minlength=classes).tolist()
    pixels = measured(images.pixels.cpu().numpy(), flip=False)
    told = STATISTICS not in withheld
    found = SiteStatistics(
        None if SIZES in withheld else sum(counts),
        [] if CLASS_COUNTS in withheld else counts,
        [*pixels.mean] if told else [],
        [*pixels.std] if told else [],
    )
    tells = told or SIZES not in withheld  # class counts go with sizes
    return Answer(codec.statistics_content(task, found), Release(int(tells)))


def _training_images(site: Site, task: Task) -> Images:
    data = site.runner.data
    return data.dataset.train[torch.from_numpy(data.partition.of(task.client)).long()]


def _step(
    step: Callable[[Member, RecordDict], RecordDict],
    site_of: SiteOf,
    task: Task,
    message: Message,
    context: Context,
) -> Answer:
    """Of secure aggregation."""
    return Answer(step(_member(site_of(context, task), task), message.content))


def _member(site: Site, task: Task) -> Member:
    if site.runner.fixed_point is None:
        raise Refusal.SUM_STEP.error()
    return Member(site.memories, site.runner.fixed_point, task)


def _train(site_of: SiteOf, task: Task, message: Message, context: Context) -> Answer:
    site = site_of(context, task)
    site.rules.check_release(task, site.release)
    site = _complete(site, task)
    broadcast = site.runner.received(codec.read_broadcast(message.content, task))
    model = site.runner.model
    unsent = unsent_tensors(model).keys()  # whatever is named would be sent back
    wanted = {name: live for name, live in model.state_dict().items() if name not in unsent}
    check_like(broadcast.weights, wanted, "weights")
    member = _member(site, task) if site.runner.fixed_point else None
    secrets = member.opened(message.content) if member else None
    memory = site.memories.load(task)
    with reproducible(site.threads):
        reply, memory_after = site.runner.train(broadcast, task.client, memory or {})
    if isinstance(reply, ClientFailure):
        raise reply
    if memory is None:
        reply = replace(reply, metrics={**reply.metrics, "memory_lost": 1.0})
    site.memories.save(task, memory_after)
    if site.runner.keeps_own and site.rules.log:  # whose owner may join them with the model
        site.memories.keep_digests(task, _training_images(site, task))
    if member and secrets:
        reply = member.masked(secrets, replace(reply, weights=to_host(reply.weights)))
    else:
        reply = disclosed_update(site.rules.withheld, reply, broadcast.weights)
    content = codec.update_content(task, reply, has_memory=bool(memory_after))
    return Answer(content, site.release)


def _evaluate(
    site_of: SiteOf, task: Task, message: Message, context: Context, lent: bool = False
) -> Answer:
    """The model on this site's own test images. `lent`: with another site's personal part."""
    site = _complete(site_of(context, task), task)
    if lent:
        site = replace(site, runner=replace(site.runner, personal={}))
    dataset = site.runner.data.dataset
    with reproducible(site.threads):
        model = _sent_model(site, message)
        scores = [score(model, dataset, *part) for part in scored_parts(dataset)]
    right = [sum(counts) for counts in zip(*(part.right for part in scores), strict=True)]
    losses = [loss for part in scores for loss in part.losses]
    found = Score(right or [0] * dataset.classes, losses)
    # Images that data.holdout keeps back are trained on in other runs, and scores have no noise.
    release = Release(int(dataset.held_out))
    return Answer(codec.score_content(task, found, _test_images(site.runner)), release)


def _all_scores(
    site_of: SiteOf, task: Task, message: Message, context: Context, personal: bool = False
) -> Answer:
    """Of the final model: more than the few numbers that every round asks for. `personal`: with
    this client's own personal part."""
    site = _complete(site_of(context, task), task)
    if personal:
        site = replace(site, runner=replace(site.runner, personal=_own_part(site, task)))
    dataset = site.runner.data.dataset
    with reproducible(site.threads):
        model = _sent_model(site, message)
        scores = scores_of(model, dataset.test, dataset.preparation, dataset.classes)
    # The personal part is of training images, and has no noise; for the others see `_evaluate`.
    release = Release(int(personal or dataset.held_out))
    return Answer(codec.message(task, scores=codec.encode(scores.tensors)), release)


def _lend(site_of: SiteOf, task: Task, message: Message, context: Context) -> Answer:
    """Its personal part, which the server passes on to the other sites, for them to score."""
    site, release = site_of(context, task), Release(1)
    site.rules.check_release(task, release)
    part = codec.encode(to_host(_own_part(site, task)))
    return Answer(codec.message(task, part=part), release)


def _own_part(site: Site, task: Task) -> Tensors:
    memory = site.memories.load(task)
    if not memory or not site.runner.keeps_own:
        raise ClientFailure(task.client, "its personal part is lost")
    return personal_and_rest(memory)[0]


def _sent_model(site: Site, message: Message) -> FeatureModel:
    """The model that was sent, with the site's personal part: the one that everybody began with, or
    its own."""
    sent = codec.decode(message.content.get("weights"))
    return frozen(site.runner.model, site.runner.here({**sent, **site.runner.personal}))


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
    """How many test images there are of each class."""
    images: list[int] = runner.data.dataset.cell_sizes.sum(dim=0).tolist()
    return images


def site_from_config(context: Context, task: Task) -> Site:
    """For a SuperNode: what the run's config says, as far as this node's own config allows it. Its
    own pictures are those of the client that the server takes it for."""
    node = NodeConfig.read(context.node_config)
    require_guard(node.app_sha256)
    for line in run_app_code(str(context.run_config.get("code", "")), node.code_sha256):
        print(line, file=sys.stderr)  # the site's log
    try:
        asked = config.from_toml(str(context.run_config["experiment"]))
    except ConfigError as error:  # the same version could read what the server's could
        raise ProtocolMismatch(str(error)) from error
    # Initial weights are the server's to read: it sends them, and a run opens no file of a site's.
    model = replace(asked.model, weights="", weights_skip=())
    privacy = at_site(asked.privacy)
    experiment = replace(asked, data=asked.seeded_data, model=model, privacy=privacy)
    node.rules.check_run(experiment)
    dataset, partition = node.load(experiment.data, task.client)
    runner = client_runner(experiment, dataset, partition)
    keep_freed_memory()
    return Site(
        runner.on(choose_devices(experiment.engine.device)[0]),
        NodeMemories(node.memories_folder),
        experiment.engine.threads,
        awaits_unsent=bool(unsent_tensors(runner.model)),
        rules=node.rules,
        release=_release(experiment, runner.fixed_point, bool(node.rules.least_sum)),
    )


def _release(experiment: Experiment, form: FixedPoint | None, relies_on_sums: bool) -> Release:
    """Of an update. Of the noise in a sum a site adds no more than its share: that is all it counts
    on, unless it is content to be one of many."""
    vectors, summed = 1 + experiment.method.overrides("upload"), form.survivors if form else 1
    if not isinstance(form, NoisySum):
        return Release(vectors, experiment.privacy.at_client, summed)
    noise = experiment.privacy.noise if relies_on_sums else form.share
    return Release(vectors, noise, summed, not relies_on_sums)


def rules_from_config(context: Context) -> SiteRules:
    rules = NodeConfig.read(context.node_config).rules
    app = str(context.node_config.get(RUNNING_APP, ""))
    return replace(rules, app=app, about=_about(str(context.run_config.get("experiment", ""))))


ABOUT = (
    *("method.name", "model.name", "data.image_size", "training.epochs"),
    *("privacy.noise", "privacy.where", "server.secure"),
)


def _about(experiment: str) -> str:
    """What is asked for, as the run's config has it, for a line of the record."""
    with suppress(*config.NOT_TOML):
        tables = config.tables_in(experiment)
        words = (key.partition(".") for key in ABOUT)
        pairs = ((f"{table}.{key}", tables.get(table, {}).get(key)) for table, _, key in words)
        told = [f"{k} = {v}" for k, v in pairs if v is not None and v is not False]
        return printable(", ".join(told), 200)
    return ""


HANDLERS: dict[str, Handler] = {
    "query.whoami": _whoami,
    "query.forget": _forget,
    ASKS_STATISTICS: _statistics,
    "query.keys": partial(_step, Member.offer),
    "query.shares": partial(_step, Member.deal),
    "query.unmask": partial(_step, Member.reveal),
    "train": _train,
    "evaluate": _evaluate,
    "evaluate.scores": _all_scores,
    PERSONAL: partial(_all_scores, personal=True),
    LENDS: _lend,
    LENT: partial(_evaluate, lent=True),
}
app = Desk(site_from_config, rules_from_config).app()
