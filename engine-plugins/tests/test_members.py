"""An engine without a pool on its host: its address is a list of members of a cluster."""

from __future__ import annotations

import pathlib
import socket
import time

import pytest
from conftest import Server, tiny_model
from slab import same, say, tokens
from transformers import DynamicCache

import turnkv
from turnkv.transformers import TurnKVCache


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def cluster(folder: pathlib.Path, count: int) -> tuple[list[Server], str]:
    """Pools of one cluster, and the list of their addresses."""
    doors = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    members = ", ".join(f'{{ id = "pool-{at}", endpoint = "tcp://{door}" }}' for at, door in enumerate(doors))
    servers = []
    for at, door in enumerate(doors):
        (folder / str(at)).mkdir()
        server = Server(folder / str(at), nvme=None)
        text = server.config.read_text()
        server.config.write_text(f'tcp = "{door}"\n{text}[cluster]\nid = "pool-{at}"\nmembers = [{members}]\n')
        servers.append(server)
    return servers, ",".join(f"tcp://{door}" for door in doors)


@pytest.mark.parametrize("legacy", [False, True])
def test_turns_go_on_wherever_a_member_is_left(legacy: bool, tmp_path: pathlib.Path) -> None:
    servers, addresses = cluster(tmp_path, 2)
    model, prompt = tiny_model(), tokens(60, seed=1)
    pool = turnkv.Pool(addresses)
    try:
        for server in servers:
            server.start()
        first = TurnKVCache(model, "chat", pool, page_tokens=16, legacy=legacy)
        assert first.begin(prompt) == 0
        said = say(model, prompt, first, 4)
        assert first.end_turn(said.sequences).tokens_offloaded > 0
        again = TurnKVCache(model, "chat", pool, page_tokens=16, legacy=legacy)
        assert again.begin(said.sequences) >= 48, again.turn
        again.end_turn(said.sequences)
        servers[0].kill()
        began = time.monotonic()
        alone = TurnKVCache(model, "chat", pool, page_tokens=16, legacy=legacy)
        assert alone.begin(said.sequences) == 0, alone.turn
        ours = say(model, said.sequences, alone, 4)
        assert alone.end_turn(ours.sequences).tokens_offloaded > 0
        assert time.monotonic() - began < 30
        assert same(ours, say(model, said.sequences, DynamicCache(config=model.config), 4))
        found = TurnKVCache(model, "chat", pool, page_tokens=16, legacy=legacy)
        assert found.begin(ours.sequences) >= 48, found.turn
    finally:
        for server in servers:
            server.kill()


def test_a_list_is_of_one_kind_and_nobody_of_it_is_a_miss() -> None:
    with pytest.raises(ValueError, match="all tls://host:port or all tcp://host:port"):
        turnkv.Pool("tcp://127.0.0.1:1,tls://127.0.0.1:1")
    pool = turnkv.Pool("tcp://127.0.0.1:1,tcp://127.0.0.1:2", follow_homes=False)
    with pytest.raises(turnkv.Error) as failed:
        pool.open_namespace("m", dtype="bf16", layers=1, kv_heads=1, head_dim=8)
    assert failed.value.kind == "unavailable"
