"""TurnKV for vLLM: `kv_connector="TurnKVConnector"`, `kv_connector_module_path="turnkv.vllm"`.

Owns: nothing but the name that vLLM loads. Must not know: how it works.
"""

from .connector import TurnKVConnector

__all__ = ["TurnKVConnector"]
