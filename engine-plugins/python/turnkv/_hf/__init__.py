"""What `turnkv.transformers` is made of: `common` (words, checks), `copying` (DynamicCache and copies), `slab` (pages in place)."""
