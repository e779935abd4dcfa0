import errno
import json
from unittest.mock import Mock

import aiohttp

from slowtok.detectors.case.ending import CUT_SHORT
from slowtok.proxy.http.response import WHAT_TO_CHECK, error_response
from slowtok.proxy.upstream.client import _error_for, no_engine
from slowtok.proxy.web.page.serve import FOLDER


def test_error_has_the_shape_that_openai_clients_read() -> None:
    response = error_response(502, 'it "failed": look', "upstream-error")

    assert response.status == 502
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "error": {
            "message": 'it "failed": look',
            "type": "slowtok_error",
            "param": None,
            "code": "upstream-error",
        }
    }


def test_explanation_advises_what_the_reply_has_said() -> None:
    refused = aiohttp.ClientConnectorError(Mock(), ConnectionRefusedError(111, "refused"))
    told = [no_engine("the usual ports")]
    errors = (refused, TimeoutError(), OSError(errno.EMFILE, "many"), ConnectionResetError())
    told += [_error_for(error, "http://127.0.0.1:1") for error in errors]

    assert {error.ended: error.check for error in told} == WHAT_TO_CHECK


def test_page_gives_the_same_reasons_and_advice() -> None:
    words = (FOLDER / "js" / "endings.js").read_text("utf-8")

    for name, ending in CUT_SHORT.items():
        assert name in words
        assert f'"{ending.reason}"' in words
    for check in WHAT_TO_CHECK.values():
        assert f'"{check}"' in words
