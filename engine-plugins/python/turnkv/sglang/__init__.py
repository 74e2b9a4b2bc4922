"""SGLang plugins: `HiCacheBackend`, a storage tier under HiCache, and `Linker`, which loads straight into device pages.

    --hicache-storage-backend dynamic          with class_name HiCacheBackend
    --unified-cache-external-linker-backend dynamic          with linker Linker

Owns: the names SGLang loads. Must not know: pages, pools. Both need SGLang; importing turnkv alone does not.
"""

from .hicache import HiCacheBackend
from .linker import Linker

__all__ = ["HiCacheBackend", "Linker"]
