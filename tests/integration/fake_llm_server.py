"""A small streaming server in the form of OpenAI's, with known delays and with every fault on request.

Standard library alone, and a process of its own: it can be killed, and its times are not the client's. Token k of an
answer is sent at ``ttft + k x itl`` after its request had arrived, on an absolute schedule: late once is not late for
ever. Text depends on the prompt alone. It writes ``port N`` to stdout and what it does to its log.

    python fake_llm_server.py --ttft 0.05 --itl 0.01 --fault gone --fault-at 7
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import ssl
import sys
import time
from typing import Any, TextIO

WORDS = "the of and a to in is you that it he was for on are as with his they at be this have from or one had".split()  # noqa: SIM905
SALAD = ("приве", "世界的", "عالم", "hello", "สวัสดี", "קלוע", "नमस्ते", "αβγδ")
PHRASE = ("and", "so", "it", "goes")
FAULTS = (
    "gone", "cut", "no_done", "no_finish", "stall", "pings", "bangs", "salad", "loop", "replacement", "http_500",
    "http_429", "redirect", "stream_error", "html", "empty", "not_json", "die_on_request", "refuse_logprobs", "endless",
    "stream_refused", "no_list",
)  # fmt: skip
JSON = "application/json"


def words(prompt: str, count: int, at: int, fault: str) -> list[str]:
    """The answer's tokens. From ``at`` on they are what the fault makes of them."""
    found = []
    for number in range(count):
        digest = hashlib.sha256(f"{prompt}/{number}".encode()).digest()
        word = WORDS[digest[0] % len(WORDS)]
        if number >= at and fault in ("bangs", "salad", "loop", "replacement"):
            word = {
                "bangs": "!!!!", "salad": SALAD[number % len(SALAD)], "loop": PHRASE[number % 4],
                "replacement": "\ufffd\ufffd",
            }[fault]  # fmt: skip
        found.append(word if fault == "bangs" and number > at else " " + word)
    return found


class Server:
    """One server with its options; ``asked`` counts the questions after the first, which finds out what it can."""

    def __init__(self, options: argparse.Namespace, log: TextIO) -> None:
        self.options = options
        self.log = log
        self.begun = time.monotonic()
        self.asked = 0
        self.models = options.models.split(",") if options.models else []

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:9.3f} {text}", file=self.log, flush=True)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self.request(writer, head[0].split(), headers, body):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def request(
        self, writer: asyncio.StreamWriter, line: list[str], headers: dict[str, str], body: bytes
    ) -> bool:
        """Answer one request; whether the connection stays open."""
        at, options = time.monotonic(), self.options
        if options.key and headers.get("authorization") != f"Bearer {options.key}":
            return await plain(writer, 401, error(f"Incorrect API key provided: {headers.get('authorization')}"))
        if at - self.begun < options.loading:
            self.say("loading")
            return await plain(writer, 503, error("Loading model"))
        if line[1] == "/v1/models":
            if options.fault == "redirect":
                head = b"HTTP/1.1 307 X\r\nLocation: https://elsewhere.invalid/v1/models\r\nContent-Length: 0\r\n\r\n"
                writer.write(head)
                return True
            if options.fault == "no_list":
                return await plain(writer, 500, "Internal Server Error", "text/plain")
            if options.fault == "html":
                return await plain(writer, 200, "<html>It works!</html>", "text/html")
            listed = [{"id": name, "object": "model"} for name in (options.lists or options.models).split(",") if name]
            return await plain(writer, 200, json.dumps({"object": "list", "data": listed}))
        if line[1] not in ("/v1/chat/completions", "/v1/completions"):
            return await plain(writer, 404, error(f"no such path {line[1]}"))
        return await self.question(writer, line[1].startswith("/v1/chat"), json.loads(body), at)

    async def question(self, writer: asyncio.StreamWriter, chat: bool, body: dict[str, Any], at: float) -> bool:
        options = self.options
        if body["model"] not in self.models:
            return await plain(writer, 404, error(f"The model `{body['model']}` does not exist."))
        unknown = set(body) & set(options.refuses.split(",")) - {""}
        unknown |= set(body.get("stream_options") or {}) & set(options.refuses.split(","))
        if unknown:
            return await plain(writer, 422, json.dumps({"detail": f"Unexpected fields: {sorted(unknown)}"}))
        if options.fault == "refuse_logprobs" and body.get("logprobs"):
            return await plain(writer, 400, error("logprobs are not supported"))
        self.asked += 1
        fault = options.fault if self.asked > options.good_first else ""
        if fault in ("http_500", "http_429"):
            return await plain(writer, int(fault[5:]), error("CUDA error: an illegal memory access was encountered"))
        if fault == "die_on_request":
            self.die()
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        self.say(f"question {self.asked}: {len(prompt.split())} words, {body['max_tokens']} tokens")
        await Answer(self, writer, chat, body, prompt, fault, at).send()
        return True

    def die(self) -> None:
        self.say("RuntimeError: CUDA error: device-side assert triggered")
        self.say("the end")
        os._exit(1)


class Answer:
    """One streamed answer."""

    def __init__(
        self, server: Server, writer: asyncio.StreamWriter, chat: bool, body: dict[str, Any], prompt: str, fault: str,
        at: float,
    ) -> None:  # fmt: skip
        self.server, self.writer, self.chat, self.body, self.fault, self.at = server, writer, chat, body, fault, at
        self.options = server.options
        self.prompt = prompt
        self.streaming = body.get("stream_options") or {}
        count = body["max_tokens"]
        if self.options.ends_after and not body.get("ignore_eos"):
            count = min(count, self.options.ends_after)
        self.tokens = words(prompt, count, self.options.fault_at, fault)
        if self.options.parts_at is not None and not body.get("ignore_eos"):
            self.tokens[self.options.parts_at :] = words(prompt + "!", count, count, "")[self.options.parts_at :]

    async def send(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if self.chat:
            await self.event(self.choice({"role": "assistant", "content": ""}, None, 0))
        if self.fault == "not_json":
            await self.chunk(b"data: {\n\n")
            return await self.chunk(b"")
        sent = 0
        while sent < len(self.tokens):
            # As engines do it: the first token alone, then as many as come at a time.
            size = 1 if sent == 0 and not self.options.first_packed else self.options.tokens_per_chunk
            upto = min(sent + size, len(self.tokens))
            await asyncio.sleep(
                max(0.0, self.at + self.options.ttft + (upto - 1) * self.options.itl - time.monotonic())
            )
            if await self.faulty(sent):
                return None
            text = "" if self.fault == "empty" else "".join(self.tokens[sent:upto])
            await self.event(self.choice({"content": text}, None, upto, sent))
            sent = upto
        return await self.finish(sent)

    async def faulty(self, sent: int) -> bool:
        """Do what the fault does once so many tokens are out; whether that was the end."""
        if sent < self.options.fault_at:
            return False
        if self.fault == "gone":
            self.server.die()
        if self.fault == "cut":
            self.writer.write(b'ff\r\ndata: {"choices')
            await self.writer.drain()
            self.writer.close()
            return True
        if self.fault == "no_finish":
            await self.chunk(b"")
            return True
        if self.fault == "stream_error":
            await self.event({"error": {"message": "EngineCore encountered an issue", "code": 500}})
            await self.chunk(b"")
            return True
        if self.fault == "stream_refused":
            await self.event({"error": {"message": "The prompt is empty", "type": "BadRequestError", "code": 400}})
            await self.chunk(b"data: [DONE]\n\n")
            await self.chunk(b"")
            return True
        if self.fault in ("stall", "pings"):
            while True:
                await asyncio.sleep(0.2)
                if self.fault == "pings":
                    await self.chunk(b": ping\n\n")
        while self.fault == "endless":
            await self.event(self.choice({"content": 999 * " on and"}, None, sent))
            await asyncio.sleep(0)
        return False

    async def finish(self, sent: int) -> None:
        reason = "length" if sent == self.body["max_tokens"] else "stop"
        await self.event(self.choice({}, reason, sent))
        if self.streaming.get("include_usage") and not self.options.no_usage:
            await self.event({"choices": [], "usage": self.usage(sent)})
        if self.fault != "no_done":
            await self.chunk(b"data: [DONE]\n\n")
        await self.chunk(b"")

    def choice(self, delta: dict[str, Any], finish: str | None, sent: int, before: int | None = None) -> dict[str, Any]:
        content = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        found: dict[str, Any] = {"choices": [{"index": 0, **content, "finish_reason": finish}]}
        if self.body.get("logprobs") and before is not None:
            found["choices"][0]["logprobs"] = self.logprobs(before, sent)
        if self.streaming.get("continuous_usage_stats") and not (self.options.no_usage or self.options.usage_at_end):
            found["usage"] = self.usage(sent)
        return found

    def usage(self, sent: int) -> dict[str, Any]:
        found = {"prompt_tokens": len(self.prompt.split()) + 4, "completion_tokens": sent}
        return {**found, "prompt_tokens_details": {"cached_tokens": self.options.cached}}

    def logprobs(self, before: int, sent: int) -> dict[str, Any]:
        """Sure of every token but one in eight, where the second choice is as near as --margin."""
        rows = []
        for number in range(before, sent):
            lead = self.options.margin if number % 8 == 7 else 6.0
            first = -0.01 - self.options.drift
            rows.append((self.tokens[number], first, first - lead))
        if self.chat:
            return {
                "content": [
                    {
                        "token": t,
                        "logprob": a,
                        "top_logprobs": [{"token": t, "logprob": a}, {"token": "~", "logprob": b}],
                    }
                    for t, a, b in rows
                ]
            }
        return {
            "tokens": [t for t, _, _ in rows],
            "token_logprobs": [a for _, a, _ in rows],
            "top_logprobs": [{t: a, "~": b} for t, a, b in rows],
        }

    async def event(self, data: dict[str, Any]) -> None:
        head = {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": self.body["model"]}
        await self.chunk(b"data: " + json.dumps({**head, **data}).encode() + b"\n\n")

    async def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()


async def plain(writer: asyncio.StreamWriter, status: int, text: str, kind: str = JSON) -> bool:
    data = text.encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    return True


def error(text: str) -> str:
    return json.dumps({"error": {"message": text, "type": "error", "code": None}})


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--port", type=int, default=0)
    made.add_argument("--log")
    made.add_argument("--opens-after", type=float, default=0.0, help="seconds until it listens")
    made.add_argument("--loading", type=float, default=0.0, help="seconds of HTTP 503")
    made.add_argument("--models", default="tiny")
    made.add_argument("--lists", default="", help="other models than it serves, as transformers serve does")
    made.add_argument("--tls", help="file with key and certificate")
    made.add_argument("--key", default="")
    made.add_argument("--ttft", type=float, default=0.01)
    made.add_argument("--itl", type=float, default=0.001)
    made.add_argument("--tokens-per-chunk", type=int, default=1)
    made.add_argument("--first-packed", action="store_true", help="the first chunk carries as many as the others")
    made.add_argument("--no-usage", action="store_true")
    made.add_argument("--usage-at-end", action="store_true", help="never in between")
    made.add_argument("--refuses", default="", help="fields that are answered with 422")
    made.add_argument("--ends-after", type=int, default=0, help="tokens until the model's own end")
    made.add_argument("--parts-at", type=int, help="golden answers are others from this token on")
    made.add_argument("--margin", type=float, default=0.1)
    made.add_argument("--drift", type=float, default=0.0, help="by how much logprobs are lower")
    made.add_argument("--cached", type=int, default=0)
    made.add_argument("--fault", choices=("", *FAULTS), default="")
    made.add_argument("--fault-at", type=int, default=5, help="tokens until it shows")
    made.add_argument("--good-first", type=int, default=2, help="questions without the fault")
    return made


async def main() -> None:
    options = parser().parse_args()
    with open(options.log, "a") if options.log else sys.stderr as log:
        server = Server(options, log)
        server.say("starts")
        await asyncio.sleep(options.opens_after)
        secure = None
        if options.tls:
            secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            secure.load_cert_chain(options.tls)
        listening = await asyncio.start_server(server.connection, "127.0.0.1", options.port, ssl=secure)
        print("port", listening.sockets[0].getsockname()[1], flush=True)
        server.say("listens")
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
