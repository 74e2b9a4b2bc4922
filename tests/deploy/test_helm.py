"""The chart deploy/helm/turnkv, rendered by Helm itself: what comes out is what Kubernetes knows and the server understands."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import tomllib
import yaml
from conftest import DEPLOY, help_of, in_force, run

CHART = DEPLOY / "helm/turnkv"
KUBERNETES = ("1.27", "1.31", "1.37")
"""The oldest that the chart allows, one between, the newest that the schemas are of."""
PLAIN: dict[str, Any] = {"tls": {"insecure": True}}
FULL: dict[str, Any] = {
    "image": {"repository": "registry.example/turnkv", "tag": "1.2.3"},
    "imagePullSecrets": [{"name": "registry"}],
    "cluster": {"name": "kv", "etcd": ["https://etcd-0:2379", "https://etcd-1:2379"], "etcdSecret": "etcd-client"},
    "tls": {"secret": "turnkv-tls"},
    "archive": {"place": "s3://kv/pages", "endpoint": "https://s3.example", "sessions": "all", "secret": "s3"},
    "extraConfig": '[remote]\nfabrics = ["framed"]\n',
    "nodeSelector": {"gpu": "yes"},
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "system-node-critical",
    "podAnnotations": {"a": "b"},
    "serverResources": {"requests": {"cpu": "4"}, "limits": {"cpu": "8"}},
    "networkPolicy": {"engines": {"app": "vllm"}},
}
GIVEN: dict[str, Any] = {"tls": {"crt": "CRT", "key": "KEY", "ca": "CA"}, "hostPID": False}
SMALL: dict[str, Any] = PLAIN | {"dram": {"hugePages": False, "lock": False}, "networkPolicy": {"enabled": False}}
CASES = {"plain": PLAIN, "full": FULL, "given": GIVEN, "small": SMALL}


def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Manifests by kind."""
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name="pools", namespace="kv")
    manifests = [document for name, text in texts.items() if name.endswith(".yaml") for document in yaml.safe_load_all(text)]
    found = {manifest["kind"]: manifest for manifest in manifests if manifest}
    assert len(found) == len([manifest for manifest in manifests if manifest]), "one of each kind"
    return found


def pod_of(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return manifests["DaemonSet"]["spec"]["template"]["spec"]


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in pod["initContainers"] + pod["containers"] if one["name"] == name)
    return found


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_helm_has_nothing_to_say_against_it(values: dict[str, Any]) -> None:
    report = helm.lint(CHART, values, strict=True)
    assert report["errors"] == [] and report["total_charts_linted"] == 1
    assert [message for message in report["messages"] if "icon" not in message["error"]] == []


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_kubernetes_knows_every_field(values: dict[str, Any]) -> None:
    for manifest in rendered(values).values():
        for version in KUBERNETES:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    manifest = rendered(PLAIN)["DaemonSet"]
    manifest["spec"]["template"]["spec"]["hostPId"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, KUBERNETES[-1], strict=True)


def on_node(manifests: dict[str, dict[str, Any]], folder: pathlib.Path, address: str) -> str:
    """The configuration that a node's pod makes of the template, by its own words."""
    init = container(pod_of(manifests), "config")
    (script,), (shell, *flags) = init["args"], init["command"]
    template, made = folder / "template.toml", folder / "turnkv.toml"
    template.write_text(manifests["ConfigMap"]["data"]["turnkv.toml"])
    script = script.replace("/config/turnkv.toml", str(template)).replace("/etc/turnkv/turnkv.toml", str(made))
    assert "exec turnkv config" in script
    (domain,) = (one["value"] for one in init["env"] if one["name"] == "DOMAIN")
    run([shell, *flags, script.replace("exec turnkv config --config", "cat")], NODE="node-7", ADDRESS=address, DOMAIN=domain)
    return made.read_text()


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("address", "dashed"), [("10.1.2.3", "10-1-2-3"), ("fd00::1:2", "fd00--1-2")])
def test_the_server_understands_what_a_node_makes_of_it(
    values: dict[str, Any], address: str, dashed: str, tmp_path: pathlib.Path
) -> None:
    manifests = rendered(values)
    text = on_node(manifests, tmp_path, address)
    assert "@" not in text
    printed = tomllib.loads(in_force(text, tmp_path))
    host = f"[{address}]" if ":" in address else address
    assert printed["tcp"] == f"{host}:7411" and printed["metrics"] == f"{host}:9464"
    assert printed["listen"] == "unix:/run/turnkv/turnkv.sock"
    if values is FULL:
        assert printed["cluster"]["id"] == "node-7" and printed["cluster"]["etcd"] == FULL["cluster"]["etcd"]
        service = manifests["Service"]["metadata"]["name"]
        assert printed["cluster"]["endpoint"] == f"tls://{dashed}.{service}.kv.svc.cluster.local:7411"
        assert printed["archive"]["place"] == "s3://kv/pages"


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_files_that_the_configuration_names_are_mounted(values: dict[str, Any]) -> None:
    manifests = rendered(values)
    pod = pod_of(manifests)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    used = {mount["name"] for one in pod["initContainers"] + pod["containers"] for mount in one["volumeMounts"]}
    assert used == set(volumes), "each volume is used, and each that is used is there"
    mounts = {mount["mountPath"] for mount in container(pod, "server")["volumeMounts"]}
    config = tomllib.loads(manifests["ConfigMap"]["data"]["turnkv.toml"])
    places = [config["nvme"]["path"], config["listen"].removeprefix("unix:")]
    places += [
        value for section in ("tls", "cluster") for value in config.get(section, {}).values() if str(value).startswith("/")
    ]
    for place in places:
        assert any(str(place) == mount or str(place).startswith(f"{mount}/") for mount in mounts), place
    if "Secret" in manifests:
        assert volumes["tls"]["secret"]["secretName"] == manifests["Secret"]["metadata"]["name"]
        assert set(manifests["Secret"]["data"]) == {"tls.crt", "tls.key", "ca.crt"}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_a_keeper_and_a_server_meet_at_the_sockets(values: dict[str, Any]) -> None:
    manifests = rendered(values)
    pod = pod_of(manifests)
    keeper, server = container(pod, "keeper"), container(pod, "server")
    socket = tomllib.loads(manifests["ConfigMap"]["data"]["turnkv.toml"])["listen"].removeprefix("unix:")
    assert keeper["args"][:3] == ["keep", "--socket", f"{socket}.keep"]
    assert all(word in help_of("keep") for word in keeper["args"] if word.startswith("--"))
    for one in (keeper, server):
        assert {"name": "run", "mountPath": "/run/turnkv"} in one["volumeMounts"]
        assert one["image"] == server["image"] and one["securityContext"]["capabilities"]["drop"] == ["ALL"]
    # Exactly one of the two: Kubernetes refuses both, and without either a dead engine is not seen.
    assert bool(pod.get("hostPID")) != bool(pod.get("shareProcessNamespace"))
    drain_ms = tomllib.loads(manifests["ConfigMap"]["data"]["turnkv.toml"])["limits"]["drain_ms"]
    assert pod["terminationGracePeriodSeconds"] * 1000 > drain_ms, "a drain would be killed"


def test_memory_and_huge_pages_are_what_the_pool_claims() -> None:
    huge = container(pod_of(rendered(PLAIN)), "server")["resources"]
    assert huge["limits"] == {"memory": "4Gi", "hugepages-2Mi": "64Gi"}
    assert huge["requests"]["hugepages-2Mi"] == huge["limits"]["hugepages-2Mi"], "Kubernetes wants them equal"
    small = container(pod_of(rendered(SMALL)), "server")["resources"]
    assert small["limits"] == {"memory": "68Gi"}


def test_the_limit_of_locked_memory_is_raised_and_root_is_left_behind() -> None:
    server = container(pod_of(rendered(PLAIN)), "server")
    serve = "turnkv serve --config /etc/turnkv/turnkv.toml"
    assert server["args"][0].rstrip().endswith(serve)
    assert server["securityContext"]["capabilities"]["add"] == ["SYS_RESOURCE", "SETUID", "SETGID"]
    if os.geteuid() != 0:
        pytest.skip("only root can do what the container does")
    script = server["args"][0].replace(serve, "sh -c 'ulimit -l; id -u; id -g; grep CapPrm /proc/self/status'")
    raising = "ulimit -l unlimited\n"
    assert script.startswith(raising)
    may_raise = subprocess.run(["/bin/sh", "-c", raising], capture_output=True, check=False).returncode == 0
    if not may_raise:  # root of a sandbox: the rest is as it would be
        script = script.removeprefix(raising)
    limit, *rest = run([*server["command"], script]).split()
    assert limit == "unlimited" or not may_raise
    assert rest == ["7411", "7411", "CapPrm:", "0000000000000000"]
    plain = container(pod_of(rendered(SMALL)), "server")
    assert "command" not in plain and plain["args"] == ["serve", "--config", "/etc/turnkv/turnkv.toml"]


def test_the_network_lets_in_who_may_ask() -> None:
    manifests = rendered(FULL)
    policy, labels = manifests["NetworkPolicy"]["spec"], manifests["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    members = policy["podSelector"]["matchLabels"]
    assert members.items() <= labels.items()
    pages, metrics = policy["ingress"]
    assert pages["from"][0]["podSelector"]["matchLabels"] == members
    assert pages["from"][1]["podSelector"]["matchLabels"] == {"app": "vllm"}
    ports = {port["name"]: port["containerPort"] for port in container(pod_of(manifests), "server")["ports"]}
    assert pages["ports"] == [{"port": ports["turnkv"], "protocol": "TCP"}]
    assert metrics["ports"] == [{"port": ports["metrics"], "protocol": "TCP"}]
    assert [port["port"] for port in policy["egress"][1]["ports"]] == [53, 53, 2379, 443]
    assert "NetworkPolicy" not in rendered(SMALL)
    for kind in ("Service", "PodDisruptionBudget"):
        selector = manifests[kind]["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "tls.insecure=true"),
        ({"tls": {"insecure": True, "secret": "x"}}, "leave tls.secret"),
        (PLAIN | {"dram": {"gib": "64"}}, "/dram/gib"),
        (PLAIN | {"dram": {"gigs": 64}}, "gigs"),
        (PLAIN | {"cluster": {"etcd": ["etcd:2379"]}}, "/cluster/etcd"),
        (PLAIN | {"replicas": 3}, "replicas"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        rendered(values)
    assert said in str(refused.value)
