"""The fields of a RayJob, as the API reference of KubeRay 1.6 has them. Pods are checked by Kubernetes' own schemas.

No package brings KubeRay's schema: neither PyPI nor npm has one. So these are written by hand, and an unknown field or
a wrong type is refused as a cluster would.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Number = Annotated[int, Field(ge=0)]
Text = Annotated[str, StringConstraints(min_length=1)]
Texts = dict[str, str]
Manager = Literal["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]


class _Known(BaseModel):
    """Nothing is converted, and no other field is allowed: YAML's 8 is no text, and its "8" no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class AuthOptions(_Known):
    mode: Literal["disabled", "token"]


class HeadGroup(_Known):
    template: dict[str, Any]
    rayStartParams: Texts = {}
    headService: dict[str, Any] | None = None
    enableIngress: bool | None = None
    resources: Texts | None = None
    labels: Texts | None = None
    serviceType: str | None = None


class WorkerGroup(_Known):
    groupName: Text
    template: dict[str, Any]
    rayStartParams: Texts = {}
    replicas: Number = 0
    minReplicas: Number = 0
    maxReplicas: Number = 2**31 - 1
    numOfHosts: Number = 1
    idleTimeoutSeconds: Number | None = None
    suspend: bool | None = None
    resources: Texts | None = None
    labels: Texts | None = None
    scaleStrategy: dict[str, list[str]] | None = None


class RayCluster(_Known):
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup] = []
    rayVersion: str | None = None
    authOptions: AuthOptions | None = None
    upgradeStrategy: dict[Literal["type"], Literal["Recreate", "None"]] | None = None
    suspend: bool | None = None
    managedBy: Manager | None = None
    autoscalerOptions: dict[str, Any] | None = None
    enableInTreeAutoscaling: bool | None = None
    headServiceAnnotations: Texts | None = None
    gcsFaultToleranceOptions: dict[str, Any] | None = None


class RayJobSpec(_Known):
    entrypoint: Text
    rayClusterSpec: RayCluster
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"] = "K8sJobMode"
    submitterPodTemplate: dict[str, Any] | None = None
    submitterConfig: dict[Literal["backoffLimit"], Number] | None = None
    backoffLimit: Number = 0
    activeDeadlineSeconds: Number | None = None
    preRunningDeadlineSeconds: Number | None = None
    ttlSecondsAfterFinished: Number = 0
    shutdownAfterJobFinishes: bool = False
    suspend: bool | None = None
    managedBy: Manager | None = None
    deletionStrategy: dict[str, Any] | None = None
    metadata: Texts | None = None
    clusterSelector: Texts | None = None
    jobId: str | None = None
    runtimeEnvYAML: str | None = None
    entrypointResources: str | None = None
    entrypointNumCpus: float | None = None
    entrypointNumGpus: float | None = None


class Metadata(_Known):
    name: Text
    namespace: Text
    labels: Texts | None = None
    annotations: Texts | None = None


class RayJob(_Known):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: RayJobSpec
