"""Real SuperLinks, SuperNodes and Ray, as a person starts them: `dcfl flower ...` and `dcfl run`.

They want the machine to themselves: Flower restarts a client process that is slow to start.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from flwr.cli.build import build_fab_from_disk
from PIL import Image

from dcfl.config import as_tables, to_toml
from dcfl.data import Dataset
from dcfl.data.settings import DataSettings
from dcfl.errors import CODES
from dcfl.experiment import Experiment
from dcfl.flower.deploy import daemons as processes
from dcfl.flower.deploy.daemons import free_ports
from dcfl.flower.deploy.deployment import connection, down, roster_of, start_daemon, up
from dcfl.flower.deploy.submission import write_bundle
from dcfl.flower.deploy.superlink import absent_sites, run_status, submit
from dcfl.runs.evaluations import read_evaluations
from dcfl.runs.folder import RecordedRun
from dcfl.runs.training import run
from dcfl.trained.evaluate import evaluate
from tests.models.test_own_models import FUNCTION

pytestmark = pytest.mark.flower

# Every client comes twice, so that what it kept and what the server shares are used.
FEW = ["data.clients=2", "federation.participation=1.0", "federation.rounds=2", "training.epochs=1"]
Dcfl = Callable[..., str]
# Three of nine clients are lost: in round 1 before they have sent keys, in round 2 before they have
# dealt shares, in round 3 while they train, in round 4 before they reveal shares. Their replies are
# in the sum of the last round alone.
LOSING = """
import dcfl
from dcfl.flower.secure.member import Member

STEPS = {"keys": 1, "shares": 2, "train": 3, "unmask": 4}
keep, take = Member._keep, Member._take

def lose(member, step):
    if member.task.client in (0, 4, 8) and member.task.round == STEPS[step]:
        raise RuntimeError("lost")

def keeping(member, kept):
    if kept.awaits == "shares":
        lose(member, "keys")
    keep(member, kept)

def taking(member, step):
    lose(member, step)
    return take(member, step)

Member._keep, Member._take = keeping, taking

class Losing(dcfl.METHODS["fedavg"]):
    name = "losing"

    def objective(self, client):
        if client.id in (0, 4, 8) and client.round < 4:
            raise RuntimeError("lost")
        return super().objective(client)
"""
METHOD = "import dcfl\n\nclass Mine(dcfl.METHODS['dcfl-pw']):\n    name = 'mine'\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sites")


@pytest.fixture(scope="module")
def dcfl(folder: Path) -> Dcfl:
    def call(*words: str) -> str:
        command = [sys.executable, "-m", "dcfl", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@contextmanager
def deployed(dcfl: Dcfl, home: Path, *words: str) -> Iterator[Path]:
    """With TLS and two SuperNodes."""
    assert "2 online" in dcfl("flower", "up", "--tls", *words, "--home", str(home))
    yield home
    dcfl("flower", "down", "--home", str(home))
    assert not processes.processes_of(home, ())


@pytest.fixture(scope="module")
def superlink(dcfl: Dcfl, folder: Path) -> Iterator[Path]:
    with deployed(dcfl, folder / "shared") as home:
        yield home


@pytest.fixture(scope="module")
def hospitals(dcfl: Dcfl, folder: Path) -> Iterator[Path]:
    """Each with pictures of its own."""
    pictures(folder / "scans")
    data = [word for site in ("north", "south") for word in ("--data", f"folder:scans/{site}")]
    with deployed(dcfl, folder / "hospitals", *data) as home:
        yield home


def pictures(folder: Path) -> None:
    """Noise in two shades, unevenly spread over two sites; the south has one class alone. Each has
    eight test pictures, so that both weigh as in one set."""
    rng = np.random.default_rng(0)
    for site, counts in {"north": {"dark": 30, "light": 12}, "south": {"light": 40}}.items():
        for shade, count in counts.items():
            (folder / site / shade).mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(0, 128, (8, 8, 3)) + 127 * (shade == "light")
                image = Image.fromarray(noise.astype(np.uint8))
                image.save(folder / site / shade / f"{number}.png")


def embedded(out: Path, *words: str) -> str:
    changes: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        try:
            changes[key] = json.loads(value)
        except ValueError:
            changes[key] = value
    return str(run(out=out, **changes).summary["weights_sha256"])


@pytest.mark.parametrize(
    "packed", [(), ("compression.up=top-k", "compression.share=0.1", "compression.down=int8")]
)
def test_supernodes_have_the_bits_of_the_embedded_engine(
    packed: tuple[str, ...], superlink: Path, dcfl: Dcfl, tmp_path: Path
) -> None:
    words = [*FEW, "method.name=moon", *packed]
    told = [*words, "--home", str(superlink), "--out", str(tmp_path / "there"), "--json"]
    said = json.loads(dcfl("flower", "run", *told))
    assert said["weights_sha256"] == embedded(tmp_path / "here", *words)
    there, here = (RecordedRun.open(tmp_path / name) for name in ("there", "here"))
    assert [row["accuracy"] for row in there.rounds] == [row["accuracy"] for row in here.rounds]
    assert (there.folder / "report.html").is_file()
    assert all(row["bytes_up"] > row["ok"] * 10_000 for row in there.rounds)
    kept = {path.name for path in (superlink / "memories").rglob("*") if path.is_file()}
    # No memories: the run has ended.
    assert kept == {"audit.jsonl", "audit.jsonl.head", ".audit.jsonl.lock"}


def test_supernodes_send_a_masked_sum_in_spite_of_three_lost_clients(
    superlink: Path, dcfl: Dcfl, tmp_path: Path
) -> None:
    """In each round three of ten deal shares and then fail to train; the others' shares of their
    keys take their masks off. One more would be too many."""
    words = ["data.clients=10", "federation.participation=1.0", "federation.rounds=2"]
    words += ["training.epochs=1", "federation.seed=1", "faults.crash=0.35", "server.secure=true"]
    told = [*words, "--home", str(superlink), "--out", str(tmp_path / "there"), "--json"]
    said = json.loads(dcfl("flower", "run", *told))
    there = RecordedRun.open(tmp_path / "there")
    assert [(row["used"], row["failed"]) for row in there.rounds] == [(7, 3), (7, 3)]
    assert said["weights_sha256"] == embedded(tmp_path / "here", *words)
    assert not any((superlink / "memories").rglob("secrets-*"))


@pytest.mark.parametrize(("rounds", "noise"), [(4, False), (1, True)])
def test_supernodes_bear_the_loss_of_three_clients_at_each_step(
    rounds: int, noise: bool, superlink: Path, dcfl: Dcfl, folder: Path, tmp_path: Path
) -> None:
    """The bits of a simulation in which the same replies are missing. With shares of noise, which
    sites draw in secret, the same replies are in the sum."""
    (folder / "losing.py").write_text(LOSING)
    words = ["data.clients=9", "federation.participation=1.0", f"federation.rounds={rounds}"]
    words += ["training.epochs=1", "server.secure=true", "--method-file", "losing.py"]
    if noise:
        words += ["model.norm=group", "privacy.clip=1", "privacy.noise=4", "privacy.where=sum"]
    told = [*words, "--home", str(superlink), "--out", str(tmp_path / "there"), "--json"]
    said = json.loads(dcfl("flower", "run", *told))
    here = json.loads(dcfl("run", *words, "--out", str(tmp_path / "here"), "--json"))
    there = RecordedRun.open(tmp_path / "there")
    taken = [(row["used"], row["failed"]) for row in there.rounds]
    assert taken == [*[(6, 3)] * 3, (9, 0)][:rounds]
    assert (said["weights_sha256"] == here["weights_sha256"]) != noise
    assert said.get("epsilon") == here.get("epsilon")
    assert said.get("secret_noise", False) == noise
    assert not any((superlink / "memories").rglob("secrets-*"))


def test_supernodes_run_the_code_that_is_sent_to_them(
    superlink: Path, dcfl: Dcfl, folder: Path, tmp_path: Path
) -> None:
    """A network and a method of one's own: the bits of the embedded engine, and the hash in each
    site's log."""
    (folder / "net.py").write_text(FUNCTION)
    (folder / "idea.py").write_text(METHOD)
    code = ["--model-file", "net.py", "--method-file", "idea.py"]
    told = [*FEW, *code, "--home", str(superlink), "--out", str(tmp_path / "there"), "--json"]
    said = json.loads(dcfl("flower", "run", *told))
    here = json.loads(dcfl("run", *FEW, *code, "--out", str(tmp_path / "here"), "--json"))
    assert said["weights_sha256"] == here["weights_sha256"]
    assert (tmp_path / "there" / "model.py").read_text() == FUNCTION
    digest = hashlib.sha256(FUNCTION.encode()).hexdigest()
    for site in (0, 1):
        log = (superlink / "logs" / f"site-{site}.log").read_text(errors="replace")
        assert f"this run brings a model of its own: SHA-256 {digest}" in log


def test_sites_with_their_own_pictures(hospitals: Path, dcfl: Dcfl, tmp_path: Path) -> None:
    """Nobody has both sites' pictures, and the weights are those of a run that has."""
    words = [*FEW, 'data.class_names=["dark","light"]', "data.image_size=8", "method.name=dcfl-pw"]
    told = ["data.dataset=remote", *words, "--home", str(hospitals)]
    said = json.loads(dcfl("flower", "run", *told, "--out", str(tmp_path / "there"), "--json"))
    together = [f"data.dataset=sites:{hospitals.parent / 'scans'}", *words]
    usual = ["data.mean=[0.5,0.5,0.5]", "data.std=[0.25,0.25,0.25]"]
    assert said["weights_sha256"] == embedded(tmp_path / "here", *together, *usual)
    there, here = (RecordedRun.open(tmp_path / name) for name in ("there", "here"))
    assert [row["accuracy"] for row in there.rounds] == [row["accuracy"] for row in here.rounds]
    assert {row["client"]: row["num_examples"] for row in there.clients} == {0: 34, 1: 32}
    sites = there.rounds[-1]["sites"]
    assert [(site.client, site.images, site.weight) for site in sites] == [(0, 8, 1), (1, 8, 1)]
    assert "own test images" in (there.folder / "report.html").read_text()
    (counted,) = read_evaluations(there.folder)
    assert [(site.name, site.images) for site in counted.clients] == [("north", 8), ("south", 8)]
    together_counted = evaluate(here.folder)
    assert counted.scores.confusion.tolist() == together_counted.confusion.tolist()
    assert counted.scores.loss == pytest.approx(together_counted.loss, rel=1e-5)
    assert "16 test images at the sites\n" in dcfl("evaluate", str(there.folder))


def test_statistics_come_before_a_training(hospitals: Path, dcfl: Dcfl) -> None:
    words = ["data.dataset=remote", 'data.class_names=["dark","light"]', "data.image_size=8"]
    told = json.loads(dcfl("flower", "stats", *words, "--home", str(hospitals), "--json"))
    assert {name: one["by_class"] for name, one in told["sites"].items()} == {
        "north": [24, 10],
        "south": [0, 32],
    }
    assert all(0.4 < mean < 0.8 for mean in told["mean"])
    assert len(told["std"]) == 3


def test_a_broken_picture_is_told_with_site_cause_and_log(
    hospitals: Path, folder: Path, tmp_path: Path
) -> None:
    """On this machine, where the logs are. The server itself learns no name."""
    (folder / "scans" / "south" / "light" / "03.png").write_text("no picture")
    words = ["data.dataset=remote", *FEW, 'data.class_names=["dark","light"]', "data.image_size=8"]
    told = ["--home", str(hospitals), "--out", str(tmp_path / "there")]
    command = [sys.executable, "-m", "dcfl", "flower", "run"]
    done = subprocess.run([*command, *words, *told], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"warning: site south cannot be used: {CODES['picture']}" in done.stderr
    (story,) = [line for line in done.stderr.splitlines() if "03.png" in line]
    assert story.startswith("dcfl: warning: site south: ")
    assert "scans/south/light/03.png: a broken image" in story
    assert story.endswith(f"; log {hospitals / 'logs' / 'south.log'}")
    recorded = [path for path in (tmp_path / "there").iterdir() if path.is_file()]
    assert not any(b"03.png" in path.read_bytes() for path in recorded)
    lost = [row for row in RecordedRun(tmp_path / "there").clients if row["outcome"] != "ok"]
    assert {(row["site"], row["reason"]) for row in lost} == {("south", CODES["picture"])}


def test_sites_with_rules_of_their_own(folder: Path, dcfl: Dcfl, tmp_path: Path) -> None:
    """One pins the app that comes and trains in one round; the other runs another app alone."""
    pictures(tmp_path / "scans")
    written = write_bundle(tmp_path / "app")
    pin = hashlib.sha256(build_fab_from_disk(written)).hexdigest()
    own = [f'data="folder:{tmp_path}/scans/{site}"' for site in ("north", "south")]
    rules = [f'rounds=1 app-sha256="{pin}"', f'app-sha256="{"0" * 64}"']
    home, out = tmp_path / "home", tmp_path / "out"
    up(home, 2, node_configs=[" ".join(words) for words in zip(own, rules, strict=True)])
    try:
        words = [*FEW, "data.dataset=remote", 'data.class_names=["dark","light"]']
        words += ["data.image_size=8", "method.name=fedavg", "--home", str(home)]
        dcfl("flower", "run", *words, "--out", str(out), "--json")
        rows = RecordedRun.open(out).rounds
        assert [(row.ok, row.failed, len(row.sites)) for row in rows] == [(1, 1, 1), (0, 2, 1)]
        notices = " ".join(rows[0].notices)
        assert f"it runs apps with other hashes than this one's, {pin}" in notices
        audit = json.loads(dcfl("flower", "audit", str(home), "--json"))
        noted = json.loads((out / "site_records.json").read_text())["site-0"]
        known = f"{noted['lines']}:{noted['last']}"
        said = dcfl("flower", "audit", str(home / "memories" / "site-0"), "--noted", known)
        assert f"line {noted['lines']} is the one that was noted" in said
        assert "method.name = fedavg, model.name = cnn, data.image_size = 8" in said
        assert f"app {pin}" in said
    finally:
        down(home)
    north, south = (audit[str(home / "memories" / f"site-{site}" / "audit.jsonl")] for site in "01")
    trainings = [entry for entry in north["entries"] if entry["asked"] == "train"]
    assert [entry["outcome"] for entry in trainings] == ["answered", "refused"]
    assert {entry["outcome"] for entry in south["entries"]} == {"refused"}
    assert north["breaks"] == south["breaks"] == 0


ASKS = """
from pathlib import Path
from flwr.app import Message
from flwr.serverapp import ServerApp
from dcfl.flower import codec

app = ServerApp()
TASK = codec.Task("a" * 32, 0, 0)

@app.main()
def main(grid, context):
    (node,) = grid.get_node_ids()
    question = Message(codec.message(TASK), dst_node_id=node, message_type="query.whoami")
    (reply,) = grid.send_and_receive([question], timeout=60)
    Path(context.run_config["resume"]).write_text(str(reply.content))
"""


def test_an_operator_who_asks_for_names_gets_one_answer(folder: Path, tmp_path: Path) -> None:
    """With a server app of their own, which refuses nothing."""
    pictures(tmp_path / "scans")
    (tmp_path / "scans" / "north" / "dark" / "29.png").rename(
        tmp_path / "scans" / "north" / "dark" / "Smith.png"
    )
    bundle = write_bundle(tmp_path / "app")
    (bundle / "asks.py").write_text(ASKS)
    project = (bundle / "pyproject.toml").read_text()
    ours = "dcfl.flower.deploy.server_app:app"
    assert ours in project
    (bundle / "pyproject.toml").write_text(project.replace(ours, "asks:app"))
    answers = []
    link = up(tmp_path / "home", 1, True, [f'data="folder:{tmp_path}/scans/north"'])
    try:
        for name in ("Smith", "Miller"):
            data = DataSettings("remote", clients=1, image_size=8, class_names=("dark", "light"))
            data = replace(data, group=f"^({name}|[0-9])")
            told = tmp_path / f"{name}.txt"
            text = to_toml(as_tables(Experiment(data=data)))
            number = submit(link, bundle, {"experiment": text, "resume": str(told)})
            wait_for(lambda: run_status(link, number).startswith("finished"))  # noqa: B023
            answers.append(told.read_text())
    finally:
        down(tmp_path / "home")
    # What a site's record holds counts its answers, and is another after each.
    one, other = (re.sub(r"\{'lines': \d+, 'last': '\w+'\}", "", answer) for answer in answers)
    assert one == other
    assert len(one) < len(answers[0])
    assert "'images': [6, 2]" in one


def test_ray_has_the_bits_of_the_embedded_engine(dcfl: Dcfl, tmp_path: Path) -> None:
    words = [*FEW, "method.name=moon", "output.keep_checkpoint=false"]
    ray = ["engine.name=flower-simulation", "engine.workers=2", "--json"]
    said = json.loads(dcfl("run", *words, *ray, "--out", str(tmp_path / "there")))
    assert said["weights_sha256"] == embedded(tmp_path / "here", *words)
    assert not (tmp_path / "there" / "memories").exists()


def client_of(home: Path, site: int) -> int | None:
    """The process in which a site's client trains, the newest if there are two."""
    daemons = json.loads((home / "processes.json").read_text())["daemons"]
    node = next(daemon["pid"] for daemon in daemons if daemon["partition"] == site)
    warm = {}
    for child in psutil.Process(node).children(recursive=True):
        with suppress(psutil.Error):
            if "dcfl.flower.deploy.clientapp_server" in child.cmdline():
                warm[child.pid] = child.ppid()
    # Forked from the warm process.
    return max((pid for pid, parent in warm.items() if parent in warm), default=None)


def next_client(home: Path, site: int, before: int | None) -> int | None:
    client = client_of(home, site)
    return client if client != before else None


def wait_for(found: Callable[[], Any], seconds: float = 90) -> Any:
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return value


def test_clients_and_supernodes_that_are_killed(folder: Path, dcfl: Dcfl, tmp_path: Path) -> None:
    home = tmp_path / "home"
    dcfl("flower", "up", "--sites", "2", "--home", str(home))
    out = tmp_path / "out"
    words = [*FEW, "federation.rounds=3", "federation.deadline=25.0", "training.epochs=60"]
    command = [sys.executable, "-m", "dcfl", "flower", "run", *words]
    running = subprocess.Popen([*command, "--home", str(home), "--out", str(out)])
    try:
        rows = lambda: RecordedRun(out).rounds  # noqa: E731
        wait_for(lambda: (out / "rounds.jsonl").is_file())
        before = client_of(home, 1)  # of round 1, if it has not ended yet
        client = wait_for(lambda: next_client(home, 1, before))
        time.sleep(1)  # it has begun to train
        psutil.Process(client).kill()
        wait_for(lambda: len(rows()) >= 2)
        node = json.loads((home / "processes.json").read_text())["daemons"][2]
        assert node["partition"] == 1
        os.kill(node["pid"], signal.SIGKILL)
        assert running.wait(120) == 0
        accounts = [(row["ok"], row["failed"] + row["late"]) for row in rows()]
        assert accounts == [(2, 0), (1, 1), (1, 1)]
        lost = [row for row in RecordedRun(out).clients if row["outcome"] != "ok"]
        assert all(row["client"] == 1 and row["reason"] for row in lost)
        assert all(row["seconds"] < 50 for row in rows())
    finally:
        running.kill()
        down(home)
    assert not processes.processes_of(home, ())


def test_a_site_that_reboots_costs_neither_a_round_nor_the_score(
    folder: Path, dcfl: Dcfl, tmp_path: Path
) -> None:
    """Killed while round two trains, and started again when the SuperLink has missed it."""
    pictures(tmp_path / "scans")
    home, out = tmp_path / "home", tmp_path / "out"
    sites = [f'data="folder:{tmp_path}/scans/{site}"' for site in ("north", "south")]
    up(home, 2, True, sites, ["north", "south"])
    words = [*FEW, "data.dataset=remote", 'data.class_names=["dark","light"]', "data.image_size=8"]
    words += ["method.name=fedavg", "federation.deadline=20.0", "federation.minimum_replies=2"]
    command = [sys.executable, "-m", "dcfl", "flower", "run", *words]
    run = [*command, "--home", str(home), "--out", str(out)]
    running = subprocess.Popen(run, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: RecordedRun(out).rounds, 180)
        record = json.loads((home / "processes.json").read_text())["daemons"]
        south = psutil.Process(next(one["pid"] for one in record if one["name"] == "south"))
        command = south.cmdline()
        south.kill()
        link = connection(home)
        roster = roster_of(home)
        wait_for(lambda: absent_sites(link, roster), 180)
        time.sleep(5)  # the run has waited
        start_daemon(home, "south", command)
        _, err = running.communicate(timeout=300)
        assert running.returncode == 0, err
    finally:
        running.kill()
        down(home)
    there = RecordedRun.open(out)
    assert [row.used for row in there.rounds] == [2, 2]
    # It has seen that the site was away, or has tried the round in vain.
    assert "min for enough sites" in err
    together = [f"data.dataset=sites:{tmp_path / 'scans'}", *words[:4], *words[5:]]
    usual = ["data.mean=[0.5,0.5,0.5]", "data.std=[0.25,0.25,0.25]"]
    whole = embedded(tmp_path / "here", *together, *usual)
    assert there.summary is not None
    assert there.summary.weights_sha256 == whole
    scores = [row.max_accuracy for row in RecordedRun.open(tmp_path / "here").rounds]
    assert [row.max_accuracy for row in there.rounds] == pytest.approx(scores)


def test_sites_serve_vectors_and_lend_their_own_parts(
    dcfl: Dcfl, folder: Path, tmp_path: Path
) -> None:
    """The weights, and every model on every site's test vectors, of a simulation."""
    rng, labels = np.random.default_rng(0), np.arange(80) % 2
    inputs = rng.normal(size=(80, 6)) + labels[:, None]
    sites = np.repeat(["north", "south"], 40)
    whole = Dataset.of(inputs, labels, class_names=["calm", "wild"], sites=sites)
    whole.save(tmp_path / "whole.npz")
    for number, name in enumerate(("north", "south")):
        train, test = whole.arrays.site_offsets, whole.arrays.test_owners == number
        own = slice(train[number], train[number + 1])
        stored: dict[str, Any] = {"class_names": ["calm", "wild"]}
        stored["train_features"] = whole.arrays.train_pixels[own]
        stored["train_labels"] = whole.arrays.train_labels[own]
        stored["test_features"] = whole.arrays.test_pixels[test]
        stored["test_labels"] = whole.arrays.test_labels[test]
        np.savez(tmp_path / f"{name}.npz", **stored)
    home, out = tmp_path / "home", tmp_path / "there"
    configs = [f'data="npz:{tmp_path}/{name}.npz" lend="personal"' for name in ("north", "south")]
    up(home, 2, True, configs, ["north", "south"])
    words = [*FEW, "model.name=mlp", "method.name=fedavg", 'federation.personal=["classifier"]']
    try:
        told = ["data.dataset=remote", "data.features=6", 'data.class_names=["calm","wild"]']
        dcfl("flower", "run", *words, *told, "--home", str(home), "--out", str(out))
    finally:
        down(home)
    usual = ["data.mean=[0.0]", "data.std=[1.0]"]
    together = [*words[1:], f"data.dataset=npz:{tmp_path / 'whole.npz'}", *usual]
    whole_sha256 = embedded(tmp_path / "here", *together)
    there, here = (RecordedRun.open(tmp_path / name) for name in ("there", "here"))
    assert there.summary is not None
    assert there.summary.weights_sha256 == whole_sha256
    assert [row.on_sites for row in there.personal] == [row.on_sites for row in here.personal]
    assert "withheld" not in (out / "personal.jsonl").read_text()
    said = dcfl("predict", str(out), str(tmp_path / "north.npz"))
    assert "of 40 whose class is known" in said


def test_a_site_joins_while_the_server_runs_and_a_run_without_a_terminal_is_stopped(
    dcfl: Dcfl, folder: Path, tmp_path: Path
) -> None:
    """By kits, with TLS and keys; no other site changes anything."""
    pictures(tmp_path / "scans")
    port, *nodes = free_ports(4)
    at, kits = ["--superlink", f"localhost:{port}"], tmp_path / "kits"
    where = ["--keys", str(tmp_path / "keys"), "--out", str(kits)]
    dcfl("flower", "kit", "north", "south", "server", *at, *where)
    server = kits / "server" / "server.toml"
    text = server.read_text().replace('proxy = "nginx"', 'proxy = "none"')
    server.write_text(re.sub(r"^port = .*", f"port = {port}", text, flags=re.M))

    def start(name: str, scans: str, node_port: int) -> None:
        site = kits / name / "site.toml"
        text = site.read_text().replace("folder:/data/scans", f"folder:{tmp_path}/scans/{scans}")
        site.write_text(text.replace("port = 9094", f"port = {node_port}"))
        assert "connected" in dcfl("flower", "daemon", "start", str(kits / name))

    run = ["data.dataset=remote", 'data.class_names=["dark","light"]', "data.image_size=8"]
    run += ["method.name=fedavg", "training.epochs=1", "federation.deadline=60.0"]
    try:
        dcfl("flower", "daemon", "start", str(kits / "server"))
        start("north", "north", nodes[0])
        start("south", "south", nodes[1])
        command = [sys.executable, "-m", "dcfl", "flower", "run", *run, "federation.rounds=500"]
        lost = subprocess.Popen(
            [*command, "--kit", str(kits / "server"), "--out", str(tmp_path / "lost")], cwd=folder
        )
        wait_for(lambda: RecordedRun(tmp_path / "lost").rounds, 180)
        lost.kill()
        lost.wait()
        dcfl("flower", "kit", "west", "--add", *at, *where)
        key = str(kits / "west" / "keys" / "west.pub")
        dcfl("flower", "daemon", "add", str(kits / "server"), key)
        start("west", "north", nodes[2])
        status = ["flower", "daemon", "status", str(kits / "server")]
        wait_for(lambda: dcfl(*status).count(" online") >= 3)
        assert "running" in dcfl(*status)
        assert "stopped run" in dcfl("flower", "stop", "--kit", str(kits / "server"))
        wait_for(lambda: "finished:stopped" in dcfl(*status))
        # A round that a reply is missing from is repeated.
        told = ["federation.rounds=1", "federation.minimum_replies=3"]
        told += ["--kit", str(kits / "server"), "--out", str(tmp_path / "three")]
        dcfl("flower", "run", *run, *told)
    finally:
        for name in ("north", "south", "west", "server"):
            if (kits / name).is_dir():
                dcfl("flower", "daemon", "stop", str(kits / name))
    clients = RecordedRun.open(tmp_path / "three").clients
    assert [one.reason for one in clients] == ["", "", ""]
    trained = {one.site: one.num_examples for one in clients}
    assert trained == {"north": 34, "south": 32, "west": 34}
