"""The documented Kubernetes manifest has the fields of a RayJob, and an entrypoint that `gym` accepts."""

import shlex
from pathlib import Path

import jsonschema
import yaml

from nemo_gym.cli.parser import build_parser

MANIFEST = Path(__file__).resolve().parents[2] / "docs" / "kuberay.yaml"
TEXT = {"type": "string", "minLength": 1}
NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITIES = {
    "type": "object",
    "required": ["cpu", "memory"],
    "properties": {
        "cpu": {"type": "string", "pattern": "^[0-9]+m?$"},
        "memory": {"type": "string", "pattern": "^[0-9]+(Mi|Gi)$"},
    },
}
CONTAINER = {
    "type": "object",
    "required": ["name", "image", "resources"],
    "additionalProperties": False,
    "properties": {
        "name": TEXT,
        "image": TEXT,
        "ports": {
            "type": "array",
            "items": {"required": ["containerPort"], "properties": {"containerPort": {"type": "integer"}}},
        },
        "resources": {
            "required": ["requests", "limits"],
            "properties": {"requests": QUANTITIES, "limits": QUANTITIES},
            "additionalProperties": False,
        },
        "volumeMounts": {"type": "array", "items": {"required": ["name", "mountPath"]}},
        "env": {"type": "array", "items": {"required": ["name"]}},
    },
}
TEMPLATE = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "required": ["containers"],
            "additionalProperties": False,
            "properties": {
                "containers": {"type": "array", "minItems": 1, "items": CONTAINER},
                "volumes": {"type": "array", "items": {"required": ["name"]}},
            },
        }
    },
}
RAY_JOB = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": {"type": "object", "required": ["name"], "properties": {"name": {"pattern": "^[a-z0-9-]+$"}}},
        "spec": {
            "type": "object",
            "required": ["entrypoint", "rayClusterSpec"],
            "additionalProperties": False,
            "properties": {
                "entrypoint": TEXT,
                "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
                "backoffLimit": {"type": "integer", "minimum": 0},
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "ttlSecondsAfterFinished": {"type": "integer"},
                "activeDeadlineSeconds": {"type": "integer"},
                "rayClusterSpec": {
                    "type": "object",
                    "required": ["headGroupSpec"],
                    "additionalProperties": False,
                    "properties": {
                        "rayVersion": {"type": "string"},
                        "headGroupSpec": {
                            "required": ["rayStartParams", "template"],
                            "additionalProperties": False,
                            "properties": {"rayStartParams": NAMES, "template": TEMPLATE},
                        },
                        "workerGroupSpecs": {
                            "type": "array",
                            "items": {
                                "required": ["groupName", "rayStartParams", "template"],
                                "additionalProperties": False,
                                "properties": {
                                    "groupName": TEXT,
                                    "replicas": {"type": "integer"},
                                    "minReplicas": {"type": "integer"},
                                    "maxReplicas": {"type": "integer"},
                                    "rayStartParams": NAMES,
                                    "template": TEMPLATE,
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The part of the RayJob's schema that the manifest uses, written from the API reference of KubeRay."""


def test_the_manifest_has_the_fields_of_a_ray_job():
    """A misspelt field is ignored by Kubernetes without a word."""
    manifest = yaml.safe_load(MANIFEST.read_text())
    jsonschema.Draft202012Validator(RAY_JOB).validate(manifest)

    cluster = manifest["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = {one["image"] for group in groups for one in group["template"]["spec"]["containers"]}
    assert len(images) == 1, "nodes with other code are refused"


def test_the_entrypoint_is_a_command_for_as_many_nodes_as_the_manifest_starts():
    """People copy the manifest as it is."""
    manifest = yaml.safe_load(MANIFEST.read_text())
    program, *words = shlex.split(manifest["spec"]["entrypoint"])
    args = build_parser(words)[0].parse_args(words)
    replicas = sum(group["replicas"] for group in manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"])

    assert program == "gym"
    assert args.engine == "ray"
    assert args.nodes == 1 + replicas
