import json

from slowtok.proxy.outputs.errors import error_response


def test_error_has_the_shape_that_openai_clients_read() -> None:
    response = error_response(502, 'it "failed": look', "upstream-error")

    assert response.status == 502
    assert response.content_type == "application/json"
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "error": {
            "message": 'it "failed": look',
            "type": "slowtok_error",
            "param": None,
            "code": "upstream-error",
        }
    }
