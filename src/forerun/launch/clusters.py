"""Jobs of cluster managers: SkyPilot, KubeRay and Kubernetes start a script of the user's on new machines."""

from __future__ import annotations

import shlex
from typing import Any

from forerun.catalog import load_catalog
from forerun.errors import UnknownNameError
from forerun.launch.files import yaml_text
from forerun.launch.request import LaunchRequest

_IMAGE = "your-registry/your-image:tag"


def _accelerator(request: LaunchRequest) -> str:
    """Return what SkyPilot calls a device: its family, with the memory where that leaves the device open."""
    device = request.job.cluster.device
    family = device.id.partition("-")[0].upper()
    try:
        meant = load_catalog().device(family)[0].id == device.id
    except UnknownNameError:
        meant = True
    return family if meant else f"{family}-{device.memory_bytes / 1e9:.0f}GB"


def skypilot(request: LaunchRequest) -> str:
    """Return a task of SkyPilot: the priced machines, or devices by name on any cloud."""
    cluster = request.job.cluster
    machines: dict[str, Any] = {}
    if cluster.instance_type:
        place = "/".join(filter(None, (cluster.provider, cluster.region)))
        machines = {"infra": place, "instance_type": cluster.instance_type}
    elif request.accelerator != "cpu":
        machines = {"accelerators": {_accelerator(request): request.per_node}}
    words = request.torchrun('"$SKYPILOT_NODE_RANK"', '"$MASTER_ADDR"')
    head = 'MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\n' if request.nodes > 1 else ""
    task = {
        "name": request.label, "num_nodes": request.nodes,
        "resources": {**machines, "use_spot": request.estimate.spot},
        "workdir": ".", "envs": request.environment, "run": f"{head}{' '.join(words)}\n",
    }  # fmt: skip
    remarks = ("Start it with: sky launch FILE", *request.duties)
    return yaml_text(request.header(*remarks), task)


def _pod(request: LaunchRequest, name: str, devices: int, **container: Any) -> dict[str, Any]:
    kind = request.named("accelerator")
    memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    body: dict[str, Any] = {
        "name": name, "image": _IMAGE, **container,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    if kind and devices:
        body["resources"] = {"limits": {kind: devices}}
    return {"containers": [body], "volumes": [memory]}


def rayjob(request: LaunchRequest) -> str:
    """Return a RayJob of KubeRay: a head without devices, and a worker on each node."""
    job_environment = {"env_vars": request.environment}
    pods = {
        "headGroupSpec": {
            "rayStartParams": {"num-gpus": "0"},
            "template": {"spec": _pod(request, "ray-head", 0)},
        },
        "workerGroupSpecs": [{
            "groupName": "workers", "replicas": request.nodes, "minReplicas": request.nodes,
            "maxReplicas": request.nodes, "rayStartParams": {},
            "template": {"spec": _pod(request, "ray-worker", request.per_node)},
        }],
    }  # fmt: skip
    task = {
        "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": request.label},
        "spec": {
            "entrypoint": f"python {shlex.quote(request.script_name)}",
            "runtimeEnvYAML": yaml_text("", job_environment),
            "shutdownAfterJobFinishes": True, "rayClusterSpec": pods,
        },
    }  # fmt: skip
    remarks = (
        "Put your image in place of the named one, and start it with: kubectl apply -f FILE (KubeRay 1.4 or newer).",
        f"{request.script_name} hands its training function to Ray Train (TorchTrainer) with PLAN_WORLD_SIZE workers.",
        *request.duties,
    )
    return yaml_text(request.header(*remarks), task)


def k8s(request: LaunchRequest) -> str:
    """Return a headless service and an indexed job of Kubernetes: a pod a node, which starts torchrun."""
    name = request.label
    words = request.torchrun('"$JOB_COMPLETION_INDEX"', '"$MASTER_ADDR"')
    environment = {**request.environment, "MASTER_ADDR": f"{name}-0.{name}"}
    pod = _pod(
        request, "worker", request.per_node, command=["bash", "-c", f"exec {' '.join(words)}"],
        env=[{"name": key, "value": value} for key, value in environment.items()],
    )  # fmt: skip
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"job-name": name}},
    }  # fmt: skip
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "completions": request.nodes, "parallelism": request.nodes, "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {"spec": {"subdomain": name, "restartPolicy": "Never", **pod}},
        },
    }  # fmt: skip
    start = "Put your image in place of the named one, and start it with: kubectl apply -f FILE"
    return yaml_text(request.header(start, *request.duties), service, job)
