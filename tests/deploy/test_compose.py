"""deploy/compose-cluster.yaml: what it says is what the server knows, and what its parts say of one another is so."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tomllib
import yaml
from conftest import DEPLOY, ROOT, help_of, in_force

POOLS = 3
COMPOSE = yaml.safe_load((DEPLOY / "compose-cluster.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def config_of(pool: str) -> str:
    """The configuration that a pool's container is given."""
    (given,) = SERVICES[pool]["configs"]
    assert SERVICES[pool]["command"] == ["serve", "--config", given["target"]]
    return COMPOSE["configs"][given["source"]]["content"]


def volumes_of(service: str) -> dict[str, str]:
    """Volumes by where they are mounted."""
    return {place: name for name, place in (volume.split(":") for volume in SERVICES[service]["volumes"])}


def pools() -> list[str]:
    return sorted(name for name in SERVICES if name.startswith("pool-"))


def test_there_are_three_pools_and_a_keeper_for_each() -> None:
    assert len(pools()) == POOLS
    assert sorted(SERVICES) == sorted(
        ["etcd", "store", "bucket", *pools(), *(pool.replace("pool", "keeper") for pool in pools())]
    )


@pytest.mark.parametrize("pool", pools())
def test_the_server_knows_every_setting(pool: str, tmp_path: Any) -> None:
    printed = tomllib.loads(in_force(config_of(pool), tmp_path))
    assert printed["cluster"]["id"] == pool
    assert printed["archive"]["sessions"] == "all"


def test_a_setting_that_the_server_does_not_know_is_found(tmp_path: Any) -> None:
    with pytest.raises(AssertionError, match="endpint"):
        in_force(config_of("pool-1").replace("endpoint", "endpint", 1), tmp_path)


@pytest.mark.parametrize("pool", pools())
def test_what_a_pool_is_told_of_others_is_so(pool: str) -> None:
    config = tomllib.loads(config_of(pool))
    door, metrics = (int(config[key].rpartition(":")[2]) for key in ("tcp", "metrics"))
    assert config["cluster"]["endpoint"] == f"tcp://{pool}:{door}", "others find it by its service's name"
    (etcd,) = config["cluster"]["etcd"]
    assert f"--advertise-client-urls={etcd}" in SERVICES["etcd"]["command"] and etcd.startswith("http://etcd:")
    port = SERVICES["store"]["command"][-1]
    assert config["archive"]["endpoint"] == f"http://store:{port}"
    bucket = config["archive"]["place"].removeprefix("s3://").partition("/")[0]
    assert f"create_bucket(Bucket='{bucket}')" in SERVICES["bucket"]["command"][0]
    assert config["archive"]["endpoint"] in SERVICES["bucket"]["command"][0]
    (published,) = SERVICES[pool]["ports"]
    assert published.startswith("127.0.0.1:") and published.endswith(f":{metrics}")
    ends = {"etcd": "service_healthy", "bucket": "service_completed_successfully"}
    waits = {name: how["condition"] for name, how in SERVICES[pool]["depends_on"].items()}
    assert waits == ends | {pool.replace("pool", "keeper"): "service_started"}
    assert SERVICES[pool]["stop_grace_period"] == "150s" and config["limits"]["drain_ms"] < 150_000, "a drain would be killed"


@pytest.mark.parametrize("pool", pools())
def test_a_pool_meets_its_own_keeper(pool: str) -> None:
    keeper, config = pool.replace("pool", "keeper"), tomllib.loads(config_of(pool))
    socket = config["listen"].removeprefix("unix:")
    command = SERVICES[keeper]["command"]
    assert command[:3] == ["keep", "--socket", f"{socket}.keep"]
    assert all(word in help_of("keep") for word in command if word.startswith("--"))
    assert volumes_of(keeper) == {"/run/turnkv": volumes_of(pool)["/run/turnkv"]}
    assert volumes_of(pool)[config["nvme"]["path"]] == pool.replace("pool", "pages")
    assert SERVICES[pool]["pid"] == SERVICES[keeper]["pid"] == "host", "both see who writes"


def test_nothing_is_shared_that_must_not_be_and_nothing_is_left_over() -> None:
    used = [name for service in SERVICES if "volumes" in SERVICES[service] for name in volumes_of(service).values()]
    assert set(used) == set(COMPOSE["volumes"])
    pages = [name for name in used if name.startswith("pages")]
    assert len(pages) == len(set(pages)) == POOLS
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == len(set(ports))
    assert set(COMPOSE["configs"]) == set(pools())


def test_images_are_ours_or_of_one_version() -> None:
    images = {service["image"] for service in SERVICES.values()}
    assert {image for image in images if ":" not in image} == {"turnkv"}, "as the head of the file says to build it"
    others = sorted(image for image in images if ":" in image)
    assert [re.sub(r":.*", "", image) for image in others] == ["motoserver/moto", "quay.io/coreos/etcd"]
    assert all(re.fullmatch(r".*:v?\d+\.\d+\.\d+", image) for image in others)
    pinned = (ROOT / "engine-plugins/env/requirements.txt").read_text()
    assert f"moto=={others[0].partition(':')[2]}\n" in pinned, "the store is the one that the tests of archives use"
