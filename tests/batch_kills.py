# Batch jobs whose workers are killed with SIGKILL at 200 random moments: the bytes of an undisturbed run.
# tier: all
# timeout: 600
import sys
import tempfile
from pathlib import Path

from _batch import survive_kills

KILLS = 200

with tempfile.TemporaryDirectory(prefix="trireme-batch-kills-") as scratch:
    jobs = survive_kills(Path(scratch), KILLS, workers=(1, 2, 3))
print(f"{KILLS} kills over {jobs} jobs")
print("1 passed, 0 failed, 0 skipped")
sys.exit(0)
