"""`TurnKVCache`: a KV cache for Hugging Face transformers that comes back at the next turn.

    cache = TurnKVCache(model, session="chat-1")           # embedded pool; or pool="unix:/run/turnkv/turnkv.sock"
    cache.begin(input_ids)                                 # the leading pages that the pool has are there now
    out = model.generate(input_ids, past_key_values=cache)
    cache.end_turn(out[0])                                 # the pages are the pool's, the memory is free

Owns: the names that users import, and that every form of the cache is there. Must not know: pages, tensors.
No error of the pool leaves this module: the model recomputes what did not come, and `cache.turn` says why.
"""

from ._hf.cache import TurnKVCache
from ._hf.common import MappingLost, TurnReport, Unsupported
from ._hf.copying import CopyingCache
from ._hf.device import DeviceCache
from ._hf.slab import SlabCache

__all__ = ["MappingLost", "TurnKVCache", "TurnReport", "Unsupported"]

FORMS = (SlabCache, CopyingCache, DeviceCache)
"""What `TurnKVCache(...)` makes one of."""
