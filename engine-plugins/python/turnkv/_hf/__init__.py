"""What `turnkv.transformers` is made of.

`cache`: `TurnKVCache`, which every form is; `common`: words and checks; `guard`, `witness`, `hooks`, `weights`: whether a turn
may be kept. The slab form: `slab`, `row`, `memory`, `group`, `layers`, `shape`. The forms that copy: `turns`; `copying` on a CPU;
`device`, `device_layers`, `tier` on a device.
"""
