# A Slurm of one machine in a temporary directory: munged, slurmctld and slurmd, without systemd. Needs root.
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

# Debian's daemons are not on everyone's path.
os.environ["PATH"] += ":/usr/sbin:/sbin"
DAEMONS = ("munged", "slurmctld", "slurmd", "srun")
NODE = socket.gethostname().split(".")[0]

CONFIG = """
ClusterName=trial
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={room}/munge.socket
CredType=cred/munge
StateSaveLocation={room}/state
SlurmdSpoolDir={room}/spool
SlurmctldPidFile={room}/slurmctld.pid
SlurmdPidFile={room}/slurmd.pid
SlurmctldLogFile={room}/slurmctld.log
SlurmdLogFile={room}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=pmix
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """Empty where such a Slurm can run, else the reason."""
    missing = [name for name in DAEMONS if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)} here: ./dev test --slurm installs Slurm"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class NotHere(Exception):
    """The daemons do not start on this machine; the message says what they said."""


class Slurm:
    """with Slurm(directory) as slurm: slurm.run(["srun", ...])"""

    def __init__(self, room):
        self.room = Path(room)
        self.daemons = []

    def __enter__(self):
        room = self.room
        for name in ("state", "spool"):
            (room / name).mkdir(parents=True)
        room.chmod(0o755)
        key = room / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        (room / "slurm.conf").write_text(CONFIG.format(node=NODE, ports=free_ports(2), room=room, cpus=os.cpu_count()))
        (room / "cgroup.conf").write_text("CgroupPlugin=autodetect\nCgroupAutomount=no\nIgnoreSystemd=yes\n")
        self.environment = dict(os.environ, SLURM_CONF=str(room / "slurm.conf"))
        try:
            self.start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={room}/munge.socket",
                       f"--pid-file={room}/munged.pid", f"--log-file={room}/munged.log", f"--seed-file={room}/seed")
            self.wait_for(lambda: (room / "munge.socket").exists(), "munged")
            self.start("slurmctld", "-D", "-f", room / "slurm.conf")
            self.start("slurmd", "-D", "-f", room / "slurm.conf")
            self.wait_for(lambda: "idle" in self.run(["sinfo", "-h", "-o", "%t"])[1], "an idle node")
        except Exception:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if len(self.daemons) == 3:
            self.run(["scancel", "-u", "root"])
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def start(self, name, *words):
        with open(self.room / f"{name}.out", "w") as out:
            self.daemons.append(subprocess.Popen([name, *map(str, words)], env=self.environment, stdout=out, stderr=out,
                                                 stdin=subprocess.DEVNULL))

    def wait_for(self, ready, what, limit_s=30):
        end = time.monotonic() + limit_s
        while not ready():
            if time.monotonic() > end:
                raise NotHere(f"no {what} after {limit_s} s:\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in
                         sorted([*self.room.glob("*.log"), *self.room.glob("*.out")]))

    def run(self, command, limit_s=60):
        """Gives (exit code, output); 124 if it did not end in time."""
        try:
            done = subprocess.run([str(word) for word in command], env=self.environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            return 124, (late.stdout or b"").decode(errors="replace") + f"\nkilled after {limit_s} s\n"
        return done.returncode, done.stdout
