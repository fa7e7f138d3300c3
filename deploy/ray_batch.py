# Workers of one batch job as actors of a Ray cluster: python deploy/ray_batch.py --workers 8 JOB [flags of the verb].
# Ray places and restarts the workers; the rows are ours: they share the job through its directory, which all machines
# must see. An actor that is lost with its machine is started elsewhere, and its chunks are taken over meanwhile.
import argparse
import os
import subprocess
import sys

import ray

START_AGAIN = 75  # exit code: stopped, and what was done is kept


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Worker:
    """One `trireme batch`; Ray calls work() again on another machine when this one is lost."""

    def work(self, program, words):
        while True:
            done = subprocess.run([program, "batch", "--quiet", *words], stdin=subprocess.DEVNULL)
            was_killed = done.returncode < 0
            if done.returncode != START_AGAIN and not was_killed:
                return done.returncode


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cpus", type=float, default=1, help="of each worker")
    parser.add_argument("--gpus", type=float, default=0, help="of each worker")
    parser.add_argument("--address", help="of the cluster; without it Ray starts on this machine")
    parser.add_argument("job", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.job:
        parser.error("which job?")
    ray.init(address=args.address)
    program = os.environ.get("TRIREME", "trireme")
    workers = [Worker.options(num_cpus=args.cpus, num_gpus=args.gpus).remote() for _ in range(args.workers)]
    codes = ray.get([worker.work.remote(program, args.job) for worker in workers])
    ray.shutdown()
    sys.exit(max(codes))


main()
