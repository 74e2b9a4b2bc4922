"""Imported once by the process that engines are forked from. Owns: being slow here instead of there."""

import vllm.model_executor.models.gemma3
import vllm.model_executor.models.qwen3
import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm import LLM  # noqa: F401

import turnkv.vllm  # noqa: F401
