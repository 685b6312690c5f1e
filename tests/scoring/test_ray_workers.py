"""Workers of Ray: a Ray of this module's own, on loopback."""

import builtins
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from goen import Scorer
from goen.cli.main import main
from goen.errors import ExtraMissing, GoenError, UsageError
from goen.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.scoring import ray_workers
from goen.scoring.pipeline import (
    NumberedShard,
    Observer,
    Run,
    ScoredShard,
    ScoreSettings,
    score,
)
from goen.scoring.ray_workers import RayWorkers, connected
from goen.scoring.rows import RowCounts
from goen.scoring.shards import FileShard, Item
from goen.scoring.sinks import RowSink
from goen.scoring.sources import Sources
from tests.gate.test_gate import make_gate
from tests.image_sources import Seen, encoded, scored_rows, write_folder, write_parquet, write_tar
from tests.scoring.test_score_folder import score_job
from tests.scoring.test_scorer import check_scored, contents

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'goen[ray]'")

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets open and warns of its future
]

SETTINGS = ScoreSettings(batch_size=8, threads=1, device="cpu")
WORKERS = RayWorkers(2)


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate().with_false_alarm_rate(0.3)


@pytest.fixture(scope="module")
def running() -> Iterator[None]:
    """A Ray for two workers, as ``goen score`` starts it."""
    own_print = builtins.print
    with connected(WORKERS):
        yield
    assert builtins.print is own_print


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One of each kind of source, 280 pictures in all."""
    root = tmp_path_factory.mktemp("sources")
    folder = write_folder(root / "p", encoded(120))
    remote = write_folder(root / "remote", encoded(20))
    parquet = write_parquet(root / "a.parquet", encoded(100), group=30, struct=True)
    tar = write_tar(root / "a.tar", {f"{n}.png": c for n, c in enumerate(encoded(40))})
    return [str(folder), f"file://{remote}", str(parquet), f"file://{tar}"]


@pytest.fixture(scope="module")
def whole(gate: Gate, places: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process writes."""
    out = tmp_path_factory.mktemp("whole") / "scores"
    score_job(gate, places, out, SETTINGS)
    return out


def content(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in out.iterdir()}


def worker_processes() -> list[int]:
    """The workers of this module's Ray: children of its raylet, which is ours."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            title = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::_Worker") and _parents(int(status.parent.name)) & {os.getpid()}:
            found.append(int(status.parent.name))
    return found


def _parents(pid: int) -> set[int]:
    above = set()
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        above.add(pid)
    return above


@pytest.mark.usefixtures("running")
def test_two_workers_write_what_one_process_does(
    gate: Gate, places: list[str], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    summary = score_job(gate, places, out, SETTINGS, WORKERS)
    assert (summary.counts.scored, summary.counts.unreadable) == (276, 4)
    assert content(out) == content(whole)


@pytest.mark.usefixtures("running")
def test_rows_come_in_order_and_observers_see_what_workers_see(
    gate: Gate, places: list[str]
) -> None:
    here, seen, rows = Seen(), Seen(), list[ScoreRow]()
    expected = scored_rows(gate, *places, batch_size=8, observer=here)
    sources = Sources(places, gate, 16)
    sink = RowSink(rows.append)
    run = WORKERS
    summary = score(gate, sources, sink, SETTINGS, run=run, observer=seen)
    assert rows == expected
    assert (summary.engine, summary.counts) == ("torch", RowCounts.of(expected))
    names = [name for batch in seen.batches for name in batch.names]
    assert names == [name for batch in here.batches for name in batch.names]


def killing(run: Run, killed: list[int]) -> Run:
    """Kills a worker after the second shard."""

    def wrapped(
        gate: Gate,
        settings: ScoreSettings,
        observer: Observer | None,
        tasks: Iterator[NumberedShard],
    ) -> Generator[ScoredShard, None, None]:
        for number, done in enumerate(run(gate, settings, observer, tasks)):
            yield done
            if number == 1:
                killed.extend(worker_processes()[:1])
                os.kill(killed[0], signal.SIGKILL)

    return wrapped


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers through /proc")
@pytest.mark.usefixtures("running")
def test_a_worker_that_is_killed_changes_nothing(
    gate: Gate, places: list[str], whole: Path, tmp_path: Path
) -> None:
    killed: list[int] = []
    run = killing(WORKERS, killed)
    score_job(gate, places, tmp_path / "scores", SETTINGS, run)
    assert len(killed) == 1
    assert content(tmp_path / "scores") == content(whole)


@pytest.mark.usefixtures("running")
def test_what_kills_every_worker_is_an_error_that_names_the_shard(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deadly(FileShard):
        def items(self) -> Iterator[Item]:
            os._exit(1)

    monkeypatch.setattr(ray_workers, "_RETRIES", 0)
    tasks = iter([NumberedShard(7, Deadly(("a.png",)))])
    with pytest.raises(GoenError, match=r"Scoring shard 7 \(.*a\.png.*\) failed: .*continues"):
        list(RayWorkers(1)(gate, SETTINGS, None, tasks))


@pytest.mark.usefixtures("running")
def test_errors_of_a_worker_reach_the_user_as_they_are(gate: Gate) -> None:
    class Failing(FileShard):
        def items(self) -> Iterator[Item]:
            raise RuntimeError("the column is gone")

    tasks = [NumberedShard(3, Failing(("a.png",)))]
    with pytest.raises(GoenError, match=r"Scoring shard 3 \(.*\) failed: the column is gone"):
        list(RayWorkers(1)(gate, SETTINGS, None, iter(tasks)))
    with pytest.raises(UsageError, match="nonsense"):
        list(RayWorkers(1)(gate, ScoreSettings(device="nonsense"), None, iter(tasks)))


@pytest.mark.usefixtures("running")
def test_a_gpu_that_is_not_there_is_an_error_and_not_waited_for(gate: Gate) -> None:
    if ray.cluster_resources().get("GPU", 0):
        pytest.skip("there is a GPU")
    tasks = iter([NumberedShard(0, FileShard(("a.png",)))])
    with pytest.raises(UsageError, match="no GPU for --device cuda"):
        list(RayWorkers(1)(gate, ScoreSettings(device="cuda"), None, tasks))


def listening() -> set[str]:
    """The addresses at which this process and those below it listen, as /proc/net has them."""
    own: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        if pid != os.getpid() and os.getpid() not in _parents(pid):
            continue
        for handle in process.glob("fd/*"):
            try:
                own.add(handle.readlink().name)
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                found.add(words[1].partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
@pytest.mark.usefixtures("running")
def test_nothing_of_ray_listens_but_on_loopback() -> None:
    assert listening() <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert listening()


@pytest.mark.usefixtures("running")
def test_the_files_of_ray_are_for_its_owner_alone() -> None:
    folder = Path(ray._private.worker._global_node.get_session_dir_path())
    above = [place for place in folder.parents if place.name.startswith("goen-ray-")]
    assert [place.stat().st_mode & 0o777 for place in above] == [0o700]


@pytest.mark.usefixtures("running")
def test_ray_data_maps_a_scorer_over_batches(gate: Gate) -> None:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    table = ray.data.from_items([{"id": i, "image": c} for i, c in enumerate(contents(40))])
    scored = table.map_batches(
        Scorer,
        fn_constructor_args=(gate,),
        batch_size=8,
        num_cpus=0.5,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    rows = scored.take_all()
    check_scored({name: [row[name] for row in rows] for name in rows[0]}, gate, 40)


def command(out: Path, places: list[str], gate: Path) -> list[str]:
    options = ["--workers", "2", "--threads", "1", "--batch-size", "8", "--shard-size", "16"]
    out_options = ["--out", str(out), "--format", "jsonl"]
    return ["score", *places, "--gate", str(gate), *out_options, *options]


def wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(1200):
        if path.exists():
            return
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear")


@pytest.mark.usefixtures("running")
def test_a_driver_that_is_killed_goes_on_when_it_is_started_again(
    gate: Gate,
    places: list[str],
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first has a Ray of its own, as a user has it; the second that of this module."""
    gate.save(tmp_path / "gate")
    out = tmp_path / "scores"
    words = command(out, places, tmp_path / "gate")
    with subprocess.Popen(
        [sys.executable, "-m", "goen", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as first:
        wait_for(out / "_shards.jsonl", first)
        first.send_signal(signal.SIGKILL)
    assert not (out / "_manifest.json").exists()
    assert main(words) == 1  # some are unreadable
    printed = capsys.readouterr().err
    assert "276 scored" in printed
    assert "of them from before" in printed
    assert content(out) == content(whole)


def test_the_workers_of_a_ray_of_their_own_end_with_it_and_are_not_killed(
    gate: Gate, tmp_path: Path
) -> None:
    """Of one that is killed while it gets ready, Ray prints a line between the rows."""
    gate.save(tmp_path / "gate")
    folder = write_folder(tmp_path / "p", encoded(3))
    code = "import sys, ray; ray.kill = None; from goen.cli.main import main; main(sys.argv[1:])"
    words = ["score", str(folder), "--gate", str(tmp_path / "gate"), "--workers", "2"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=True)
    assert [line[:1] for line in done.stdout.splitlines()] == [b"{"] * 3


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "ray":
            raise ImportError(name)
        return imported(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ExtraMissing, match=r"pip install 'goen\[ray\]'.*Without --workers"):
        RayWorkers(2)


def test_no_worker_is_started_if_all_shards_are_there(gate: Gate) -> None:
    before = worker_processes() if ray.is_initialized() else []  # of earlier tests, about to end
    assert list(WORKERS(gate, SETTINGS, None, iter(()))) == []
    assert not ray.is_initialized() or {*worker_processes()} <= {*before}


def test_there_is_a_worker() -> None:
    with pytest.raises(UsageError, match="1 worker or more, got 0"):
        RayWorkers(0)
