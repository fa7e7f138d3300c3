# The Kubernetes manifests under deploy/ against the API's schemas, strictly: unknown fields are errors.
# tier: oracles
import sys
from pathlib import Path

import kubernetes_validate
import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"


def pods_of(document):
    """What the API itself knows of an operator's resource: the pods it makes."""
    for role, replica in document["spec"]["mpiReplicaSpecs"].items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower()}}
        yield {**pod, "spec": replica["template"]["spec"]}


def main():
    passed, failed = 0, 0
    version = kubernetes_validate.latest_version()
    for path in sorted(DEPLOY.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if "kind" not in document:
                continue
            for part in pods_of(document) if document["kind"] == "MPIJob" else [document]:
                try:
                    kubernetes_validate.validate(part, version, strict=True)
                    passed += 1
                except kubernetes_validate.ValidationError as error:
                    print(f"FAILED {path.name}, {part['kind']}: {error.message}")
                    failed += 1
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed or not passed else 0)


main()
