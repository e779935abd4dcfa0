"""What a program is by its command line, and the port that it says it listens on."""

import pytest

from slowtok.proxy.sampling.host.programs import (
    REACH,
    container_address,
    engine,
    forwarder,
    says_port,
)

DOCKER = (
    "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 8000 "
    "-container-ip 172.17.0.2 -container-port 9000 -use-listen-fd"
)


@pytest.mark.parametrize(
    ("comm", "command", "name", "reach"),
    [
        ("ssh", "ssh -N -L 8080:127.0.0.1:11434 gpubox", "ssh", "elsewhere"),
        ("sshd", "sshd: me", "ssh", "elsewhere"),
        ("kubectl", "kubectl port-forward svc/vllm 8000:80", "kubectl", "elsewhere"),
        ("cloudflared", "cloudflared access tcp --url 127.0.0.1:8000", "cloudflared", "elsewhere"),
        ("docker-proxy", DOCKER, "docker-proxy", "container"),
        ("wslrelay.exe", r"C:\Windows\wslrelay.exe --mode 2", "wslrelay", "container"),
        ("python3", "/usr/bin/python3 /opt/bin/litellm --port 4000", "litellm", "unknown"),
        ("litellm", "/opt/venv/bin/python3.12 /opt/venv/bin/litellm", "litellm", "unknown"),
        ("python", "python -m litellm --port 4000", "litellm", "unknown"),
        ("nginx", "nginx: master process /usr/sbin/nginx", "nginx", "unknown"),
        ("socat", "socat TCP-LISTEN:8080,fork TCP:gpubox:11434", "socat", "unknown"),
    ],
)
def test_a_forwarder_is_named_and_it_is_known_where_it_leads(
    comm: str, command: str, name: str, reach: str
) -> None:
    assert forwarder(comm, command.split()) == name
    assert REACH[name] == reach
    assert engine(comm, command.split()) is None


@pytest.mark.parametrize(
    ("comm", "command", "name"),
    [
        ("llama-server", "/opt/llama.cpp/bin/llama-server -m m.gguf", "llama-server"),
        ("ollama", "/usr/local/bin/ollama serve", "ollama"),
        ("ollama", "/usr/local/bin/ollama runner --model /m --port 40111", None),
        ("ollama", "ollama run llama3", None),
        ("vllm", "/opt/vllm/bin/python3 /opt/vllm/bin/vllm serve /m", "vllm"),
        ("python3", "python3 -m vllm.entrypoints.openai.api_server --port 8000", "vllm"),
        ("python3", "python3 -m sglang.launch_server --model-path /m", "sglang"),
        ("python3", "python3 train.py --port 8000", None),
    ],
)
def test_an_engine_is_known_by_its_program(comm: str, command: str, name: str | None) -> None:
    assert engine(comm, command.split()) == name
    assert forwarder(comm, command.split()) is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("llama-server --port 8080", True),
        ("llama-server --port=8080", True),
        ("llama-server --port 9090", False),
        ("llama-server -m m.gguf -c 8080", None),
        ("ssh -N -L 8080:127.0.0.1:11434 gpubox", True),
        ("ssh -N -L8080:127.0.0.1:11434 gpubox", True),
        ("ssh -N -L 9000:127.0.0.1:8080 gpubox", None),
        ("kubectl port-forward svc/vllm 8080:80", True),
        ("kubectl port-forward svc/vllm 9000:8080", None),
        ("socat TCP-LISTEN:8080,fork TCP:gpubox:11434", True),
        ("socat TCP-LISTEN:9000,fork TCP:gpubox:8080", None),
        ("uvicorn app --bind 0.0.0.0:8080", True),
        ("open-webui --ollama-url http://127.0.0.1:8080", None),
        ("open-webui --ollama-url=127.0.0.1:8080", None),
        (DOCKER.replace("8000", "8080"), True),
        (DOCKER.replace("9000", "8080"), False),
    ],
)
def test_the_port_that_a_program_says_it_listens_on(command: str, *, said: bool | None) -> None:
    assert says_port(command.split(), 8080) is said


def test_where_dockers_proxy_leads() -> None:
    assert container_address(DOCKER.split()) == ("172.17.0.2", 9000)
    assert container_address(["rootlessport"]) is None
