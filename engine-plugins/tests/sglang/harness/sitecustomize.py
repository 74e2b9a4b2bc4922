"""Every Python process of an engine under test starts here (this folder is on its PYTHONPATH): SGLang on a CPU alone.

Owns: nothing but the order. The engine's code runs as it was published; no file of it is changed.
"""

import host_pools
import stand_ins

stand_ins.install()
host_pools.install()
