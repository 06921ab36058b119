"""`deploy/kubernetes`: the plain manifests are what the chart gives, and what Kubernetes accepts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import custom_kinds
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
RENDER = FOLDER / "render.py"


def render(*args):
    return subprocess.run([sys.executable, str(RENDER), *args], capture_output=True, text=True)


def manifests(*args):
    ended = render(*args)
    assert ended.returncode == 0, ended.stderr
    return {(m["kind"], m["metadata"]["name"]): m for m in yaml.safe_load_all(ended.stdout)}


def test_the_manifests_are_what_the_chart_gives():
    ended = render("--check")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert render().stdout == (FOLDER / "caju.yaml").read_text()


VARIANTS = [
    (),
    ("--set", "keda.enabled=false", "--set", "monitoring.enabled=false", "--set", "networkPolicy.enabled=false"),
    ("--set", "credentialsSecret=store", "--set", "dispatcher.storageClass=fast", "--name", "train", "--namespace", "ml"),
    ("--set", "allowRead=[]", "--set", "cache="),
    ("--set", "namespace.create=false"),
]


@pytest.mark.parametrize("args", VARIANTS)
def test_every_manifest_fits_the_schemas_of_kubernetes(args):
    """Strictly: a field that the schema does not have is an error. So are those of KEDA and of the Prometheus operator."""
    own = foreign = 0
    for (kind, _), manifest in manifests(*args).items():
        if kind in ("ScaledObject", "ServiceMonitor"):
            assert custom_kinds.errors(manifest) == []
            foreign += 1
        else:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
            own += 1
    assert own == (6 if "networkPolicy.enabled=false" in args or "namespace.create=false" in args else 7)
    assert foreign == (0 if "keda.enabled=false" in args else 2)


def test_a_wrong_field_would_be_noticed():
    deployment = manifests()["Deployment", "caju-worker"]
    deployment["spec"]["template"]["spec"]["containers"][0]["resource"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    "kind, change, says",
    [
        ("ScaledObject", lambda spec: spec.update(maxReplicas=3), "spec: Additional properties are not allowed ('maxReplicas' "),
        ("ScaledObject", lambda spec: spec.pop("triggers"), "spec: 'triggers' is a required property"),
        (
            "ScaledObject",
            lambda spec: spec["triggers"][0]["metadata"].update(port=7070),
            "spec.triggers.0.metadata.port: 7070 is not of type 'string'",
        ),
        ("ServiceMonitor", lambda spec: spec["endpoints"][0].update(interval="15"), "spec.endpoints.0.interval: '15' does not "),
    ],
)
def test_a_wrong_field_of_keda_or_prometheus_would_be_noticed(kind, change, says):
    [manifest] = [m for (of, _), m in manifests().items() if of == kind]
    change(manifest["spec"])
    [error] = custom_kinds.errors(manifest)
    assert error.startswith(says)


def test_keda_gets_where_the_dispatcher_is():
    """What KEDA's documentation asks of a ScaledObject with an external scaler."""
    made = manifests("--name", "train", "--namespace", "ml", "--set", "keda.maxWorkers=7")
    scaled = made["ScaledObject", "train-worker"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    spec = scaled["spec"]
    worker = made["Deployment", spec["scaleTargetRef"]["name"]]
    assert "replicas" not in worker["spec"], "KEDA sets it"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 7)
    [trigger] = spec["triggers"]
    assert trigger["type"] == "external-push" and trigger["metricType"] == "AverageValue"
    host, port = trigger["metadata"]["scalerAddress"].split(":")
    service = made["Service", "train-dispatcher"]
    assert host == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert int(port) in [p["port"] for p in service["spec"]["ports"]]
    # The dispatcher names no more workers than KEDA may start.
    dispatcher = made["StatefulSet", "train-dispatcher"]
    assert "--max-workers=7" in container(dispatcher)["args"] and "--min-workers=0" in container(dispatcher)["args"]
    alone = manifests("--set", "keda.enabled=false")
    assert alone["Deployment", "caju-worker"]["spec"]["replicas"] == 2
    assert ("ScaledObject", "caju-worker") not in alone


def container(workload):
    [only] = workload["spec"]["template"]["spec"]["containers"]
    return only


def test_pods_run_without_root_and_drain_in_time():
    made = manifests()
    for name in [("StatefulSet", "caju-dispatcher"), ("Deployment", "caju-worker")]:
        pod, main = made[name]["spec"]["template"]["spec"], container(made[name])
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        inner = main["securityContext"]
        assert inner["readOnlyRootFilesystem"] and not inner["allowPrivilegeEscalation"]
        assert inner["capabilities"] == {"drop": ["ALL"]}
        drain = next(a for a in main["args"] if a.startswith("--drain-timeout="))
        assert pod["terminationGracePeriodSeconds"] >= int(re.search(r"=(\d+)s", drain)[1]) + 10
        assert main["readinessProbe"] and main["livenessProbe"] and main["resources"]["requests"]
        variables = {v["name"] for v in main.get("env", [])}
        assert {name for a in main["args"] for name in re.findall(r"\$\((\w+)\)", a)} <= variables
        assert all("$" not in re.sub(r"\$\(\w+\)", "", a) for a in main["args"])
    ports = {p["name"] for p in container(made["StatefulSet", "caju-dispatcher"])["ports"]}
    monitor = made["ServiceMonitor", "caju"]["spec"]
    assert monitor["endpoints"][0]["port"] in ports and monitor["endpoints"][0]["path"] == "/metrics"
    labels = made["Service", "caju-dispatcher"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()


def test_the_grace_period_follows_the_time_for_draining():
    grace = {
        (): 130,
        ("--set", "worker.drainSeconds=300"): 310,
    }
    for args, seconds in grace.items():
        worker = manifests(*args)["Deployment", "caju-worker"]
        assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == seconds


def test_a_worker_has_as_many_threads_as_cores_are_reserved_for_it():
    """With those of the whole node, further workers there would bring nothing, and the target would be taken for wrong."""
    made = container(manifests()["Deployment", "caju-worker"])
    assert "--cpu-threads=auto:$(CPU_REQUEST)" in made["args"]
    [request] = [v["valueFrom"]["resourceFieldRef"] for v in made["env"] if v["name"] == "CPU_REQUEST"]
    # Without a divisor Kubernetes gives whole cores, rounded up.
    assert request == {"containerName": made["name"], "resource": "requests.cpu"} and made["resources"]["requests"]["cpu"]
    given = container(manifests("--set", "worker.cpuThreads=6")["Deployment", "caju-worker"])
    assert [a for a in given["args"] if a.startswith("--cpu-threads")] == ["--cpu-threads=6"]


def test_the_namespace_comes_first():
    first = next(yaml.safe_load_all(render("--namespace", "ml").stdout))
    assert (first["kind"], first["metadata"]["name"]) == ("Namespace", "ml")
    assert "kind: Namespace" not in render("--set", "namespace.create=false").stdout
    # Helm makes the namespace itself.
    assert yaml.safe_load((FOLDER / "chart" / "values.yaml").read_text())["namespace"] == {"create": False}


def test_values_without_a_cache_and_with_several_places_to_read():
    options = container(manifests("--set", "cache=", "--set", "allowRead=[s3://a, s3://b]")["StatefulSet", "caju-dispatcher"])["args"]
    assert not [o for o in options if o.startswith("--cache")]
    assert [o for o in options if o.startswith("--allow-read")] == ["--allow-read=s3://a", "--allow-read=s3://b"]


def test_the_autoscaler_accepts_its_behaviour():
    """KEDA copies the behaviour into a HorizontalPodAutoscaler."""
    for exact in ("false", "true"):
        spec = manifests("--set", f"keda.exact={exact}")["ScaledObject", "caju-worker"]["spec"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert [behavior[way].get("tolerance") for way in ("scaleUp", "scaleDown")] == [0 if exact == "true" else None] * 2
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "caju-worker"}
        scaler = {
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "caju-worker"},
            "spec": {"scaleTargetRef": target, "maxReplicas": 16, "behavior": behavior},
        }
        kubernetes_validate.validate(scaler, kubernetes_validate.latest_version(), strict=True)


def test_selectors_find_their_pods():
    made = manifests("--name", "train")
    pods = {name: m["spec"]["template"]["metadata"]["labels"] for name, m in made.items() if "template" in m.get("spec", {})}
    dispatcher, worker = pods["StatefulSet", "train-dispatcher"], pods["Deployment", "train-worker"]
    wanted = made["Service", "train-dispatcher"]["spec"]["selector"].items()
    assert wanted <= dispatcher.items() and not wanted <= worker.items()
    budget = made["PodDisruptionBudget", "train-worker"]["spec"]["selector"]["matchLabels"].items()
    assert budget <= worker.items() and not budget <= dispatcher.items()
    policy = made["NetworkPolicy", "train"]["spec"]["podSelector"]["matchLabels"].items()
    assert policy <= worker.items() and policy <= dispatcher.items()


def test_the_servers_accept_the_arguments_of_the_manifests():
    """Each option of the pods is one that the binary has, in the form in which the manifests give it."""
    made = manifests()
    for name in [("StatefulSet", "caju-dispatcher"), ("Deployment", "caju-worker")]:
        command, *options = container(made[name])["args"]
        usage = subprocess.run([os.environ["CAJU_BIN"], command, "--help"], capture_output=True, text=True, check=True).stdout
        for option in options:
            flag = option.split("=")[0]
            assert re.search(rf"^ +{flag}\b", usage, re.MULTILINE), f"caju {command} has no {flag}"


@pytest.mark.parametrize(("args", "says"), [
    (["--set", "worker.replica=3"], "values.yaml has no worker.replica"),
    (["--set", "keda=false"], "keda=false: expected a value for one of its keys"),
    (["--set", "allowRead=s3://bucket/train"], "expected a list, such as [s3://bucket/train]"),
    (["--set", "allowRead={s3://bucket/train}"], "expected a list"),
    (["--set", "worker.drainSeconds=5min"], "worker.drainSeconds=5min: expected a whole number"),
    (["--set", "keda.enabled="], "keda.enabled=: expected true or false"),
])
def test_wrong_values_are_named(args, says):
    ended = render(*args)
    assert ended.returncode != 0 and says in ended.stderr, ended.stderr
