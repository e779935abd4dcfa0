"""Reports that are no case: they do not give what one is made of."""

from dataclasses import dataclass

LLAMA = "https://github.com/ggml-org/llama.cpp"
OLLAMA = "https://github.com/ollama/ollama"
VLLM = "https://github.com/vllm-project/vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """One report that cannot be judged again.

    `cause` is what it was; `says` what is told; `needs` what slowtok would have had to see on that
    machine to name it. `later` says that the cause has no name yet.
    """

    url: str
    cause: str
    says: str
    needs: str
    later: bool = False


UNTOLD = (
    Untold(
        url=f"{OLLAMA}/issues/10874",
        cause="context-oversized",
        says="one model on the CPU, another on the GPU of a Mac; no number",
        needs="the engine's split, the context that it reserved",
    ),
    Untold(
        url=f"{OLLAMA}/issues/5821",
        cause="partial-offload",
        says="31 of 33 layers on a card with 6 GiB free; no rate",
        needs="the rate; split and free memory are what it looks at",
    ),
    Untold(
        url="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
        cause="cpu-fallback",
        says="a container loses its GPU after hours; no number",
        needs="that the driver's library fails in there, and the CPU at work",
    ),
    Untold(
        url="https://github.com/jundot/omlx/issues/2689",
        cause="thermal-throttle",
        says="18 % less after three hours on an M3 Max; clocks are of another run",
        needs="the GPU's clock during the request (macmon)",
    ),
    Untold(
        url="https://github.com/Blackwellboy/model-serving-minefield (trap 18)",
        cause="flash-attention-off",
        says="half the rate at 56K; neither model nor rate",
        needs="the flag, the context, the rate",
    ),
    Untold(
        url=f"{LLAMA}/issues/11247",
        cause="threads-misconfigured",
        says="slower with more threads on 6 virtual sockets; no number",
        needs="the rate, threads, cores and time waited for a core",
    ),
    Untold(
        url="https://github.com/musistudio/claude-code-router/pull/1220",
        cause="prompt-cache-miss",
        says="all of the prompt is read each turn: a header changes; no number",
        needs="two turns: v11-attribution-header is the same cause",
    ),
    Untold(
        url="https://github.com/noonghunna/club-3090/issues/585",
        cause="long-context",
        says="the rate bends down beyond 100K tokens; no rate",
        needs="the rate and the context",
    ),
    Untold(
        url=f"{LLAMA}/issues/12966",
        cause="none: what RAM gives",
        says="no gain from more than 4 threads; no rate",
        needs="the rate and the bandwidth of RAM",
    ),
    Untold(
        url=f"{LLAMA}/pull/17766",
        cause="gpu-memory-unwired",
        says="the first token after a pause takes 250 ms more on a Mac",
        needs="nothing: 250 ms once a request are below what counts",
        later=True,
    ),
    Untold(
        url="https://github.com/ikawrakow/ik_llama.cpp/pull/1436",
        cause="prompt-cache-miss",
        says="20 s instead of 1 to 2 for each tool call: a header changes; no tokens",
        needs="two turns: v11-attribution-header is the same cause",
    ),
    Untold(
        url=f"{LLAMA}/issues/22940",
        cause="cache-not-rewindable",
        says="every turn reads everything, 95 % of it known; no time",
        needs="two turns, and that the model has a recurrent state",
    ),
    Untold(
        url="https://github.com/kyuz0/amd-strix-halo-toolboxes/issues/99",
        cause="cache-not-rewindable",
        says="every turn is read again, not with denser checkpoints; no number",
        needs="two turns, and that the model has a recurrent state",
    ),
    Untold(
        url="https://github.com/Mintplex-Labs/anything-llm/issues/6398",
        cause="prompt-cache-miss",
        says="the time stands at the beginning of the system prompt; no number",
        needs="two turns across a minute",
    ),
    Untold(
        url="https://github.com/earendil-works/pi/issues/1873",
        cause="prompt-cache-miss",
        says="the second stands in the system prompt; no number",
        needs="two turns",
    ),
    Untold(
        url="https://github.com/NousResearch/hermes-agent/issues/37594",
        cause="localhost-ipv6",
        says="2 s a connection: the client tries ::1 first",
        needs="to be asked: the time is gone before the request comes; listening on ::1 avoids it",
        later=True,
    ),
    Untold(
        url="https://github.com/datawhalechina/hello-agents/pull/547",
        cause="localhost-ipv6",
        says="30 s a request until localhost became 127.0.0.1",
        needs="to be asked: the time is gone before the request comes; listening on ::1 avoids it",
        later=True,
    ),
    Untold(
        url=f"{LLAMA}/issues/24496",
        cause="abandoned-request",
        says="a slot works on until the context is full though its client left",
        needs="slots at work that no request here asked for",
    ),
    Untold(
        url="https://github.com/open-webui/open-webui/issues/28413",
        cause="background-task",
        says="the same client's request for a title holds up the answer; no time",
        needs="which client both are of: today queued or batch-shared",
        later=True,
    ),
    Untold(
        url="https://github.com/QwenLM/Qwen3.8/issues/131",
        cause="template-rewrite",
        says="a chain of tool calls is read again once the user speaks; no number",
        needs="that messages only grew while the engine found another beginning",
    ),
    Untold(
        url="https://github.com/anomalyco/opencode/issues/37489",
        cause="prompt-cache-miss",
        says="tools differ between two modes, so all is read again; no number",
        needs="two turns",
    ),
    Untold(
        url="https://github.com/openclaw/openclaw/pull/51952",
        cause="prompt-cache-miss",
        says="old results of tools are rewritten; no number",
        needs="two turns",
    ),
    Untold(
        url=f"{OLLAMA}/issues/15634",
        cause="partial-offload",
        says="42 of 43 layers on an RTX 3090, 32 % of the bytes on the CPU; no rate",
        needs="the rate; the bytes on each side are what it looks at",
    ),
    Untold(
        url="https://github.com/lmstudio-ai/lms/issues/366",
        cause="model-load",
        says="minutes for a load with mmap on a GB10; no time",
        needs="the time: model-load is named, why it takes long is not",
    ),
    Untold(
        url=f"{LLAMA}/issues/15018",
        cause="model-load",
        says="loading collapses beyond 64 GB on Strix Halo; no time",
        needs="the time: model-load is named, why it takes long is not",
    ),
    Untold(
        url=f"{VLLM}-ascend/issues/7193",
        cause="kernel-compile",
        says="the first request waits for a compiler; no time",
        needs="that it is the first of its shape since the start",
    ),
    Untold(
        url=f"{VLLM}/pull/49903",
        cause="kernel-compile",
        says="each new shape of a batch compiles; no time",
        needs="that it is the first of its shape since the start",
    ),
    Untold(
        url=f"{VLLM}/pull/32928",
        cause="slow-kernel",
        says="41.6 tokens/s, 50 with a tuned configuration: a diffusion model",
        needs="a rate for such models: 17 % are inside any first band",
    ),
    Untold(
        url=f"{VLLM}/issues/47019",
        cause="slow-kernel",
        says="a MoE is slower than a dense model on V100; no rate in what was read",
        needs="the rate, how busy the GPU and its memory were",
    ),
    Untold(
        url=f"{LLAMA}/issues/27147",
        cause="kernel-compile",
        says="the first image takes 1.18 s, the next 0.75",
        needs="nothing: 0.4 s once are below what counts",
    ),
    Untold(
        url=f"{OLLAMA}/issues/13308",
        cause="cpu-fallback",
        says="looking for the GPU timed out, so the CPU computes; no number",
        needs="the engine's split and the CPU at work",
    ),
    Untold(
        url=f"{OLLAMA}/issues/10300",
        cause="cpu-fallback",
        says="a container loses its GPU after seven hours; no rate",
        needs="that the driver's library fails in there, and the CPU at work",
    ),
    Untold(
        url=f"{OLLAMA}/issues/15336",
        cause="cpu-fallback",
        says="on the CPU since a version, Strix Halo in a container; no number",
        needs="the engine's split and the CPU at work",
    ),
    Untold(
        url=f"{LLAMA}/issues/17917",
        cause="slow-kernel",
        says="51.2 tokens/s with ROCm 6.4.4, less with 7.x: how much is not told",
        needs="the rate after it, and its own past",
    ),
    Untold(
        url=f"{LLAMA}/issues/17037",
        cause="engine-regression",
        says="prompts are read more slowly since a commit; 4,095 tokens/s before it",
        needs="the rate after it, and that its own past is of another build",
    ),
    Untold(
        url=f"{LLAMA}/issues/17058",
        cause="engine-regression",
        says="106.9 tokens/s before build 6969; the rate after it was not read",
        needs="the rate after it, and that its own past is of another build",
    ),
    Untold(
        url=f"{VLLM}/issues/42317",
        cause="cache-not-rewindable",
        says="no hit in the prefix cache of a hybrid model; no time",
        needs="two turns, and that the model has a recurrent state",
    ),
    Untold(
        url=f"{VLLM}/issues/51198",
        cause="cache-not-rewindable",
        says="1,131 tokens asked for, none found; no time",
        needs="two turns, and that the model has a recurrent state",
    ),
    Untold(
        url=f"{VLLM}/issues/40696",
        cause="cache-not-rewindable",
        says="beginnings of less than 528 tokens are never found; no time",
        needs="the size of a block, from the engine's log",
    ),
    Untold(
        url="https://github.com/dstackai/dstack/issues/4269",
        cause="downstream-buffering",
        says="the first token after 16.5 s instead of 0.5: a gateway holds 16 KB",
        needs="to stand between the gateway and the client; from before it all is normal",
        later=True,
    ),
    Untold(
        url=f"{LLAMA}/pull/20872",
        cause="downstream-buffering",
        says="nginx holds a whole stream back; no time",
        needs="to stand between nginx and the client; X-Accel-Buffering: no avoids it",
        later=True,
    ),
    Untold(
        url=f"{VLLM}/issues/25301",
        cause="server-preprocessing",
        says="one thread tokenises for all while the GPU idles; no time",
        needs="the time between arrival and the engine's queue, and that thread",
        later=True,
    ),
    Untold(
        url="https://github.com/NousResearch/hermes-agent/issues/61265",
        cause="oversized-prompt",
        says="minutes for very long prompts; no tokens",
        needs="nothing but words: how much of the time went into how many tokens",
    ),
    Untold(
        url="https://github.com/unslothai/unsloth/issues/11278",
        cause="engine-regression",
        says="slower since an upgrade of llama.cpp; the rates were not read",
        needs="the rate, and that its own past is of another build",
    ),
    Untold(
        url="https://github.com/jundot/omlx/pull/1784",
        cause="template-rewrite",
        says="a model that thinks never finds its earlier prompt; no time",
        needs="that messages only grew while the engine found another beginning",
    ),
    Untold(
        url="https://github.com/anomalyco/opencode/issues/23595",
        cause="prompt-cache-miss",
        says="a reminder moves from one message to the next; no number",
        needs="two turns",
    ),
    Untold(
        url="https://github.com/Yanyutin753/LambChat/pull/371",
        cause="prompt-cache-miss",
        says="86 % of hits become 72 with memory that is put in each turn",
        needs="two turns",
    ),
    Untold(
        url=f"{LLAMA}/pull/14099",
        cause="wrong-device",
        says="Vulkan takes a software device; no number",
        needs="the CPU at work while the engine says GPU: cpu-fallback where a GPU is seen",
        later=True,
    ),
)
