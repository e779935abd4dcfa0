"""The limit of an answer, as each API has it."""

import orjson
import pytest

from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.call import max_tokens_of, read_call


@pytest.mark.parametrize(
    ("path", "said", "limit"),
    [
        ("/v1/chat/completions", {}, None),
        ("/v1/chat/completions", {"max_tokens": 100}, 100),
        ("/v1/chat/completions", {"max_tokens": 100, "max_completion_tokens": 300}, 300),
        ("/v1/chat/completions", {"max_tokens": 100, "n": 2}, None),
        ("/v1/chat/completions", {"max_tokens": 100, "n": 1}, 100),
        *(("/v1/chat/completions", {"max_tokens": odd}, None) for odd in (0, -1, "9", 2.5, True)),
        ("/v1/chat/completions", {"max_tokens": 100, "options": ["x"]}, 100),
        ("/v1/responses", {"max_output_tokens": 50, "max_tokens": 9}, 50),
        ("/v1/messages", {"max_tokens": 70}, 70),
        ("/api/chat", {"options": {"num_predict": 60}}, 60),
        ("/api/chat", {"options": {"num_predict": -1}}, None),
        ("/completion", {"n_predict": 80, "max_tokens": 9}, 80),
    ],
)
def test_the_limit_of_an_answer_is_read_where_each_api_has_it(
    path: str, said: dict[str, object], limit: int | None
) -> None:
    api = find_api("POST", path)
    assert api is not None
    call = read_call(api, orjson.dumps(said))

    assert call is not None
    assert max_tokens_of(call) == limit
