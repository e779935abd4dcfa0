"""What kinds of engines have in common, as sets of `ServerFacts.kind`, each with what it means.

A set that only one module needs stands there. Two sets here may hold the same engines for now: they
say different things of them. `llamafile` and `trtllm` are kinds of published rates; no probe tells
them yet.
"""

LLAMA_CPP = frozenset({"llama-server", "ollama", "lm-studio", "llamafile"})
"""Built on llama.cpp: they share its kernels, its switches and its KV cache. That gives a request
its room before it begins, throws none out later, and keeps no more of a sliding window than it is
wide."""

LLAMA_CPP_WITH_OPTIONS = frozenset({"llama-server", "ollama"})
"""Built on llama.cpp, with options and variables that slowtok sees at the process or its runner; LM
Studio sets them in code."""

PAGED_KV_CACHE = frozenset({"vllm", "sglang"})
"""All conversations share one cache in blocks, of which the oldest go first. It keeps the blocks of
a sliding window, too."""

WHOLE_ON_GPU = frozenset({"vllm", "sglang"})
"""Put all weights on GPUs, or do not start; what is left they fill with KV cache."""

SPINNING_PROCESSES = frozenset({"vllm", "sglang", "trtllm"})
"""Have an API server, a scheduler and workers, which wait for GPUs and for each other by spinning
on a core each: how many cores they use together says nothing, one of them that is busy all the time
does."""

COMPILING = frozenset({"vllm", "sglang"})
"""Compile kernels at run time on any card; llama.cpp's CUDA builds bring their code along."""

LOADED_BEFORE_ANSWERING = frozenset({"llama-server", "vllm", "sglang", "trtllm"})
"""Have their model when they answer, but for what they put away and tell. Others may load it for a
request: without timings of their own, the wait for the first token may have been that."""
