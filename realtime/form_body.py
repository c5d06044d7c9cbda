"""The body of a request for a video or an image: JSON, or a form as the OpenAI SDK sends it, as one map of fields."""

from __future__ import annotations

import asyncio

from aiohttp import web
from multidict import MultiDictProxy

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.references import Upload
from streamsynth.realtime.request_body import decode_object, read_body, read_within

_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


async def read_fields(request: web.Request, limits: Limits) -> dict[str, object]:
    """The body's fields. A form's are text or `Upload`. Raises StreamSynthError as `read_body` does."""
    if request.content_type not in _FORMS:
        return decode_object(await read_body(request, limits))
    try:
        form = await read_within(request, limits, lambda: _form_of(request))
    except (ValueError, LookupError, RuntimeError, web.HTTPBadRequest) as error:
        # Also a charset or an encoding of a field that nobody knows.
        raise StreamSynthError(ErrorCode.INVALID_VALUE, "the form in the body is broken") from error
    fields: dict[str, object] = {}
    for name, value in form.items():
        # The SDK writes an object's fields as name[field].
        name, bracket, key = name.partition("[")
        if bracket:
            inner = fields.setdefault(name, {})
            key = key.removesuffix("]")
            if not isinstance(inner, dict) or key in inner:
                raise _twice(f"{name}[{key}]")
            inner[key] = value
        elif name in fields:
            raise _twice(name)
        else:
            fields[name] = await _uploaded(value) if isinstance(value, web.FileField) else value
    return fields


async def _form_of(request: web.Request) -> MultiDictProxy[str | bytes | bytearray | web.FileField]:
    try:
        return await request.post()
    except web.HTTPRequestEntityTooLarge as error:
        if "form fields" in (error.text or ""):
            most = request.client_max_fields
            message = f"the form has too many fields: the limit is {most}"
            raise StreamSynthError(ErrorCode.INVALID_VALUE, message) from None
        raise


async def _uploaded(field: web.FileField) -> Upload:
    with field.file:
        return Upload(await asyncio.to_thread(field.file.read))


def _twice(name: str) -> StreamSynthError:
    return StreamSynthError(ErrorCode.INVALID_VALUE, f"{name[:60]} is given more than once", param=name[:60])
