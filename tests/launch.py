# trireme launch: exact lines, ranks killed and started again from their checkpoint, fewer ranks, signals.
# timeout: 900
import hashlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import _ranks
from _serving import Skip, run_cases
from _training import INTERRUPTED, TRIREME, make_patterns

CONFIG = """
run: {{name: {name}, directory: {directory}, steps: {steps}, seed: 11}}
model: {{source: "zoo:mlp", config: {{size: 12, hidden: [48, 32], classes: 4, dropout: 0.1}}}}
data: {{path: {data}, hold_out: 0.1}}
batch: {{global: 32, micro: 4}}
loader: {{workers: 1, prefetch: 2}}
optimizer: {{kind: adamw}}
schedule: {{lr: 0.003}}
checkpoint: {{every: 80, keep: 2}}
log: {{progress: 0s}}
"""

scratch = tempfile.TemporaryDirectory(prefix="launch")
ROOM = Path(scratch.name)
make_patterns(ROOM / "data")


STEPS = 6000  # enough of them follow each moment at which a run is disturbed, however fast they are


def configure(name, steps=STEPS):
    """Gives the configuration's path and the run directory."""
    path = ROOM / f"{name}.yaml"
    path.write_text(CONFIG.format(name="run", directory=ROOM / name, data=ROOM / "data", steps=steps))
    return path, ROOM / name


def launch(*words, **how):
    return subprocess.Popen([TRIREME, "launch", *map(str, words)], env=_ranks.environment(), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


def finish(process, limit_s=300):
    """Gives (exit code, stdout, stderr); ends the whole launch at the limit."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        for child in ranks_of(process) + [process.pid]:
            os.kill(child, signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err + f"\nkilled after {limit_s} s\n"
    return process.returncode, out, err


def children(pid):
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def ranks_of(process):
    """The trainers: children of the launcher, or of its mpirun."""
    below = children(process.pid)
    return [p for child in below for p in children(child)] or below


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def reached(directory, step, process, limit_s=200):
    """Waits until a checkpoint of at least `step` is committed."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and process.poll() is None:
        latest = directory / "checkpoints/latest"
        if latest.exists() and int(latest.read_text().strip().split("-")[1]) >= step:
            return
        time.sleep(0.005)
    code, _, err = finish(process, 1)
    if "not part of this build" in err:
        raise Skip("this build trains on one rank only")
    raise AssertionError(f"no checkpoint of step {step}: exit {code}: {err}")


def weights(directory):
    return hashlib.sha256((directory / "model/run/1/model.onnx").read_bytes()).hexdigest()


undisturbed = {}


def undisturbed_weights():
    """What a run of one rank that nobody disturbs ends with."""
    if not undisturbed:
        config, directory = configure("undisturbed")
        code, _, err = finish(launch("--restarts", 0, "--", "trireme", "train", config, "--quiet"))
        assert code == 0, err
        undisturbed["weights"] = weights(directory)
    return undisturbed["weights"]


def lines_are_exact():
    config, _ = configure("lines")
    program = str(Path(TRIREME).resolve())
    for kind, start in (("local", ""), ("mpi", "mpirun -n 2 --bind-to none "),
                        ("slurm", "srun -n 2 --mpi=pmix --cpu-bind=none --kill-on-bad-exit=1 ")):
        if kind != "local" and _ranks.why_no_mpi():
            continue
        code, out, err = finish(launch("-n", 2, "--kind", kind, "--print", "--", "trireme", "train", config,
                                       "--run.name", "it's"))
        want = f"{start}{program} train {config} --run.name 'it'\\''s' --parallel.dp 2\n"
        assert (code, out) == (0, want), f"{out!r} is not {want!r}; {err}"


def mistakes_are_not_repeated():
    config, _ = configure("mistakes")
    code, _, err = finish(launch("--", "trireme", "train", config, "--batch.micro", "5"))
    assert code == 2 and "restart" not in err, f"{code}: {err}"
    code, _, err = finish(launch("-n", 3, "--", "trireme", "train", config, "--tp", "2"))
    assert code == 2 and "not a multiple of tp 2" in err, f"{code}: {err}"
    code, _, err = finish(launch("-n", 2, "--", "trireme", "train", config, "--dp", "4"))
    assert code == 2 and "make 4 ranks" in err, f"{code}: {err}"
    code, _, err = finish(launch("-n", 2, "--", "echo", "x"))
    assert code == 2 and "--kind mpi" in err, f"{code}: {err}"
    code, _, err = finish(launch("--", "no-such-program"))
    assert code == 3 and "no-such-program" in err, f"{code}: {err}"


def gives_up_after_so_many():
    code, _, err = finish(launch("--restarts", 2, "--", "sh", "-c", "kill -9 $$"))
    assert code == 137, f"{code}: {err}"
    assert err.count("launch restart") == 2 and "given_up" in err and "ended=\"signal 9\"" in err, err


def killed_and_resumed(ranks, *words):
    """Kills a rank twice; gives stderr and the number of ranks in the end."""
    config, directory = configure(f"killed{ranks}{'-'.join(words)}".replace("--", ""))
    process = launch("-n", ranks, *words, "--", "trireme", "train", config, "--quiet")
    for step in (240, 960):
        reached(directory, step, process)
        running = ranks_of(process)
        os.kill(running[-1], signal.SIGKILL)
        while running[-1] in ranks_of(process):
            time.sleep(0.005)
    code, _, err = finish(process)
    assert code == 0, f"{code}: {err}"
    assert err.count("launch restart") == 2 and err.count("running_again lost=") == 2, err
    assert "time_lost restarts=2" in err, err
    assert weights(directory) == undisturbed_weights(), "other weights than the run that nobody disturbed"
    return err


def a_killed_process_is_resumed():
    killed_and_resumed(1)


def killed_local_ranks_are_resumed():
    killed_and_resumed(2)


def killed_mpi_ranks_are_resumed():
    if reason := _ranks.why_no_mpi():
        raise Skip(reason)
    killed_and_resumed(2, "--kind", "mpi")


def the_ranks_that_are_left_go_on():
    if reason := _ranks.why_no_mpi():
        raise Skip(reason)
    # 8 micro-batches: 3 ranks do not divide them, so 4 ranks become 2, and 2 become 1.
    err = killed_and_resumed(4, "--kind", "mpi", "--shrink")
    assert "ranks=2 from=" in err and "ranks=1 from=" in err, err


def stopped_and_resumed(ranks, *words):
    config, directory = configure(f"stopped{ranks}{'-'.join(words)}".replace("--", ""))
    process = launch("-n", ranks, *words, "--", "trireme", "train", config, "--quiet")
    reached(directory, 160, process)
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == INTERRUPTED and "restart" not in err, f"{code}: {err}"
    code, _, err = finish(launch("--", "trireme", "train", config, "--quiet", "--resume", "auto"))
    assert code == 0, err
    assert weights(directory) == undisturbed_weights(), "other weights than the run that nobody disturbed"


def a_named_checkpoint_is_resumed_again():
    """Until the launch has committed a checkpoint of its own, a restart goes on from the one that is named."""
    config, directory = configure("named")
    process = launch("--", "trireme", "train", config, "--quiet")
    reached(directory, 160, process)
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == INTERRUPTED, f"{code}: {err}"
    named, *_, newest = sorted((directory / "checkpoints").glob("step-*"))
    process = launch("--", "trireme", "train", config, "--quiet", "--resume", named, "--checkpoint.every", 100000)

    def started(but=None):
        while not (pids := [p for p in ranks_of(process) if p != but]):
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        return pids[0]

    first = started()
    os.kill(first, signal.SIGKILL)
    started(but=first)
    process.kill()
    _, err = process.communicate()
    assert err.count(f"--resume {named}") == 2 and "--resume auto" not in err, err
    step = int(named.name.split("-")[1])
    assert f'from="step {step}"' in err and named != newest, err


def a_signal_saves_and_ends():
    stopped_and_resumed(1)
    stopped_and_resumed(2)


def a_signal_reaches_mpi_ranks():
    if reason := _ranks.why_no_mpi():
        raise Skip(reason)
    stopped_and_resumed(2, "--kind", "mpi")


def ranks_do_not_outlive_their_launcher():
    config, directory = configure("orphans")
    process = launch("-n", 2, *([] if _ranks.why_no_mpi() else ["--kind", "mpi"]), "--", "trireme", "train", config,
                     "--quiet")
    reached(directory, 80, process)
    below = ranks_of(process)
    process.kill()
    end = time.monotonic() + 20
    while any(running(pid) for pid in below):
        assert time.monotonic() < end, f"{below} still run"
        time.sleep(0.05)
    process.communicate()


run_cases([("lines_are_exact", lines_are_exact), ("mistakes_are_not_repeated", mistakes_are_not_repeated),
           ("gives_up_after_so_many", gives_up_after_so_many),
           ("a_killed_process_is_resumed", a_killed_process_is_resumed),
           ("killed_local_ranks_are_resumed", killed_local_ranks_are_resumed),
           ("killed_mpi_ranks_are_resumed", killed_mpi_ranks_are_resumed),
           ("the_ranks_that_are_left_go_on", the_ranks_that_are_left_go_on),
           ("a_named_checkpoint_is_resumed_again", a_named_checkpoint_is_resumed_again),
           ("a_signal_saves_and_ends", a_signal_saves_and_ends),
           ("a_signal_reaches_mpi_ranks", a_signal_reaches_mpi_ranks),
           ("ranks_do_not_outlive_their_launcher", ranks_do_not_outlive_their_launcher)])
