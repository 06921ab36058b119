"""The two kinds of `deploy/kubernetes` that are not Kubernetes' own: ScaledObject (KEDA) and ServiceMonitor (Prometheus operator).

[FIELDS] has those of their fields that the manifests use, with the names and types of the published definitions: `keda.sh/v1alpha1`
as of commit 8b4f083c of kedacore/keda, and `monitoring.coreos.com/v1` as of commit 6adcebc5 of
prometheus-operator/prometheus-operator. With `CAJU_CRDS=FOLDER` the manifests are checked against definitions in files instead:

    kubectl get crd scaledobjects.keda.sh -o yaml > crds/scaledobjects.yaml
    kubectl get crd servicemonitors.monitoring.coreos.com -o yaml > crds/servicemonitors.yaml
    CAJU_CRDS=crds pytest tests/python/test_kubernetes.py

`jsonschema` comes with `kubernetes-validate`.
"""

import os
from pathlib import Path

import jsonschema
import yaml

STRING, COUNT = {"type": "string"}, {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
STRINGS = {"type": "object", "additionalProperties": STRING}


def fields(required=(), **properties):
    return {"type": "object", "required": list(required), "properties": properties}


def items(of):
    return {"type": "array", "items": of}


# Of the Prometheus operator: each unit once, from years to milliseconds.
INTERVAL = "^(0|" + "".join(f"(([0-9]+){unit})?" for unit in ("y", "w", "d", "h", "m", "s", "ms")) + ")$"
POLICY = fields(("type", "value", "periodSeconds"), type=STRING, value=COUNT, periodSeconds=COUNT)
RULES = fields(stabilizationWindowSeconds=COUNT, selectPolicy=STRING, policies=items(POLICY))
FIELDS = {
    ("ScaledObject", "keda.sh/v1alpha1"): fields(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=fields(("name",), name=STRING),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        advanced=fields(horizontalPodAutoscalerConfig=fields(behavior=fields(scaleUp=RULES, scaleDown=RULES))),
        triggers=items(fields(("type", "metadata"), type=STRING, metricType=STRING, metadata=STRINGS)),
    ),
    ("ServiceMonitor", "monitoring.coreos.com/v1"): fields(
        ("endpoints", "selector"),
        selector=fields(matchLabels=STRINGS),
        endpoints=items(fields(port=STRING, path=STRING, interval={"type": "string", "pattern": INTERVAL})),
    ),
}


def strict(schema):
    """The same schema without the fields that it does not name: Kubernetes would drop them in silence."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not is_open:
        schema["additionalProperties"] = False
    return schema


def definitions():
    """By kind and version: what a manifest may hold."""
    folder = os.environ.get("CAJU_CRDS")
    if not folder:
        whole = {kind: fields(("spec",), apiVersion=STRING, kind=STRING, spec=spec) for kind, spec in FIELDS.items()}
    else:
        whole = {}
        for file in sorted(Path(folder).glob("*.y*ml")):
            crd = yaml.safe_load(file.read_text())["spec"]
            for version in crd["versions"]:
                kind = crd["names"]["kind"], f"{crd['group']}/{version['name']}"
                whole[kind] = version["schema"]["openAPIV3Schema"]
    # Kubernetes itself checks the metadata.
    metadata = {"metadata": fields(("name",), name=STRING, namespace=STRING, labels=STRINGS)}
    return {kind: strict({**schema, "properties": schema["properties"] | metadata}) for kind, schema in whole.items()}


def errors(manifest):
    """What is wrong with a manifest of one of these kinds: the place and the reason of each fault."""
    schema = definitions()[manifest["kind"], manifest["apiVersion"]]
    found = jsonschema.Draft7Validator(schema).iter_errors(manifest)
    return [f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message}" for error in found]
