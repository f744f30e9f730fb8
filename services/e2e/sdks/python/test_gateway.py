import asyncio
import json
import math

import openai

from gateway import INVALID_KEY, GatewayTest, await_freed, in_flight, left, told

MESSAGES = [{"role": "user", "content": "hello"}]
HELLO = {"model": "grok-2", "messages": MESSAGES, "max_completion_tokens": 4}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SLOW = {"stream": True, "extra_body": {"x_sim": {"tokens": 1000, "pace_ms": 20}}}


class Answers(GatewayTest):
    def test_a_chat_is_answered_whole(self):
        sdk, _ = self.client("open")
        answer = sdk.chat.completions.create(**HELLO)
        self.assertEqual(answer.choices[0].message.content, " t0 t1 t2 t3")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 4)
        told(answer._request_id, answer.usage)

    def test_a_text_completion_is_answered_whole_and_streamed(self):
        sdk, attempts = self.client("open")
        asked = {"model": "grok-2", "prompt": "once", "max_tokens": 3}
        whole = sdk.completions.create(**asked)
        self.assertEqual(whole.choices[0].text, " t0 t1 t2")
        told(whole._request_id, whole.usage)
        text = "".join(chunk.choices[0].text for chunk in sdk.completions.create(**asked, stream=True))
        self.assertEqual(text, " t0 t1 t2")
        told(attempts[-1].id)

    def gathered(self, chunks, asks):
        text, finish, usage = "", None, None
        for chunk in chunks:
            if not chunk.choices:
                self.assertTrue(asks and finish, "a chunk without choices is the usage, at the end, of who asked")
                usage = chunk.usage
            else:
                self.assertIsNone(chunk.usage)
                text += chunk.choices[0].delta.content or ""
                finish = chunk.choices[0].finish_reason
        self.assertEqual((text, finish), (" t0 t1 t2 t3", "length"))
        self.assertEqual(usage and usage.completion_tokens, 4 if asks else None)
        return usage

    def test_a_stream_has_usage_only_for_who_asked(self):
        for asks in (False, True):
            sdk, attempts = self.client("open")
            with sdk.chat.completions.create(**HELLO, **(WITH_USAGE if asks else {"stream": True})) as stream:
                told(attempts[0].id, self.gathered(stream, asks))

    def test_the_asynchronous_client_streams_too(self):
        async def run(asks):
            sdk, attempts = self.async_client("open")
            async with sdk:
                stream = await sdk.chat.completions.create(**HELLO, **(WITH_USAGE if asks else {"stream": True}))
                told(attempts[0].id, self.gathered([chunk async for chunk in stream], asks))

        for asks in (False, True):
            asyncio.run(run(asks))

    def test_the_stream_helper_gathers_the_whole(self):
        sdk, attempts = self.client("open")
        with sdk.chat.completions.stream(model="grok-2", messages=MESSAGES, max_tokens=20, n=2, stream_options={"include_usage": True}) as stream:
            whole = stream.get_final_completion()
        text = "".join(f" t{i}" for i in range(16))
        self.assertEqual([choice.message.content for choice in whole.choices], [text, text])
        self.assertEqual(whole.usage.completion_tokens, 32)
        told(attempts[0].id, whole.usage)

    def test_a_tool_is_called_and_its_result_is_answered(self):
        tools = [{"type": "function", "function": {"name": "look", "description": "Looks something up", "strict": True,
                  "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}}}]
        asked = {"model": "grok-2", "tools": tools, "extra_body": {"x_sim": {"tool": "look"}}}
        for streamed in (False, True):
            sdk, attempts = self.client("open")
            messages = list(MESSAGES)
            for called in (True, False):
                if streamed:
                    with sdk.chat.completions.stream(**asked, messages=messages, stream_options={"include_usage": True}) as stream:
                        answer = stream.get_final_completion()
                else:
                    answer = sdk.chat.completions.create(**asked, messages=messages)
                told(attempts[-1].id, answer.usage)
                message = answer.choices[0].message
                self.assertEqual(answer.choices[0].finish_reason, "tool_calls" if called else "stop")
                text = "".join(f" t{i}" for i in range(16))
                if not called:
                    self.assertEqual(message.content, text)
                    break
                [call] = message.tool_calls
                self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("look", {"text": text}))
                messages += [message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "found"}]
            self.assertEqual(len(attempts), 2)

    def test_what_a_request_says_reaches_the_server_as_it_is(self):
        sdk, _ = self.client("open")
        asked = {
            **HELLO,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "line\u2028 😀 é"},
                                             {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "one"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
                "type": "object", "properties": {"a": {"anyOf": [{"type": "number"}, {"type": "null"}]}}}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "additionalProperties": False}}},
            "logit_bias": {"50256": -100},
            "logprobs": True,
            "seed": 9223372036854775807,
        }
        extra = {"unknown": {"b": [1, None, 0.1]}, "x_sim": {"echo": True}}
        answer = sdk.chat.completions.with_raw_response.create(**asked, extra_body=extra)
        self.assertEqual(json.loads(answer.text), {**asked, **extra})
        told(answer.headers["x-request-id"], least=0)

    def test_embeddings_are_decoded_as_floats_and_as_base64(self):
        for options in ({}, {"encoding_format": "float"}):
            sdk, _ = self.client("open")
            answer = sdk.embeddings.create(model="grok-2", input=["a", "b"], **options)
            self.assertEqual([d.embedding for d in answer.data], [[0.25, -0.5, 1], [0.25, -0.5, 1]])
            told(answer._request_id, answer.usage)

    def test_models_are_listed(self):
        sdk, _ = self.client("open")
        self.assertEqual([model.id for model in sdk.models.list()], ["grok-2", "grok-2-mini", "grok-4"])


class Refusals(GatewayTest):
    def refused(self, kind, ask, **options):
        with self.assertRaises(kind) as caught:
            ask(**options)
        return caught.exception

    def test_a_wrong_key_is_an_authentication_error(self):
        sdk, attempts = self.client("open", api_key=INVALID_KEY, max_retries=2)
        error = self.refused(openai.AuthenticationError, sdk.chat.completions.create, **HELLO)
        self.assertEqual((error.status_code, error.type, error.code, error.param), (401, "invalid_request_error", "invalid_api_key", None))
        self.assertEqual(error.request_id, attempts[0].id)
        self.assertEqual(len(attempts), 1, "it is not worth a retry")

    def test_a_used_up_limit_is_a_rate_limit_error_with_type_code_and_the_time_to_wait(self):
        sdk, _ = self.client("once")  # a request a minute
        answer = sdk.chat.completions.create(**HELLO)
        told(answer._request_id, answer.usage)
        for options in ({}, {"stream": True}):
            error = self.refused(openai.RateLimitError, sdk.chat.completions.create, **HELLO, **options)
            self.assertEqual((error.status_code, error.type, error.code), (429, "rate_limit_exceeded", "rate_limit_exceeded"))
            self.assertIn("requests per minute", error.message)
            ms = int(error.response.headers["retry-after-ms"])
            self.assertTrue(0 < ms <= 60_000)
            self.assertEqual(error.response.headers["retry-after"], str(math.ceil(ms / 1000)))
            self.assertEqual(error.response.headers["x-ratelimit-remaining-requests"], "0")

    def test_a_model_that_was_not_bought_is_a_permission_denied_error(self):
        sdk, attempts = self.client("small", max_retries=2)
        error = self.refused(openai.PermissionDeniedError, sdk.chat.completions.create, **HELLO)
        self.assertEqual((error.status_code, error.code, error.param), (403, "model_not_allowed", "model"))
        self.assertEqual(len(attempts), 1)
        answer = sdk.chat.completions.create(**{**HELLO, "model": "grok-2-mini"})
        told(answer._request_id, answer.usage)

    def test_more_than_a_limit_ever_holds_is_a_bad_request_error_that_no_retry_helps(self):
        sdk, attempts = self.client("daily", max_retries=2)  # 1,500 tokens a day
        error = self.refused(openai.BadRequestError, sdk.chat.completions.create, **{**HELLO, "max_completion_tokens": 100_000})
        self.assertEqual((error.status_code, error.type, error.code), (400, "invalid_request_error", "request_too_large"))
        self.assertEqual(len(attempts), 1)

    def test_what_is_not_served_is_a_not_found_error(self):
        sdk, _ = self.client("open")
        error = self.refused(openai.NotFoundError, sdk.responses.create, model="grok-2", input="hello")
        self.assertEqual((error.status_code, error.code), (404, "not_found"))

    def test_a_servers_failure_is_an_internal_server_error_and_each_attempt_is_a_request_of_its_own(self):
        sdk, attempts = self.client("open", max_retries=1)
        self.refused(openai.InternalServerError, sdk.chat.completions.create, **HELLO, extra_body={"x_sim": {"status": 500}})
        self.assertEqual([(a.status, a.retry) for a in attempts], [(500, 0), (500, 1)])
        self.assertNotEqual(attempts[0].id, attempts[1].id)

    def test_a_retry_waits_as_long_as_it_is_told_and_passes(self):
        sdk, attempts = self.client("paced", max_retries=5)  # 15 requests a minute, one more every 4 s
        before = retried = 0
        while retried == 0:
            before = len(attempts)
            self.assertLess(before, 100, "no limit is reached")
            answer = sdk.chat.completions.create(**HELLO)
            told(answer._request_id, answer.usage)
            retried = len(attempts) - before - 1
        self.assertEqual(retried, 1)
        first, second = attempts[before], attempts[before + 1]
        self.assertEqual([(a.status, a.retry) for a in attempts[before:]], [(429, 0), (200, 1)])
        waited = (second.asked - first.answered) * 1000
        self.assertGreaterEqual(waited, first.retry_after_ms - 5)
        print(f"told {first.retry_after_ms:.0f} ms, waited {waited:.0f} ms ... ", end="", flush=True)


class Ends(GatewayTest):
    def test_a_stream_ends_with_finish_reason_length_when_the_quota_is_used_up(self):
        sdk, attempts = self.client("daily")
        chunks, finish, usage = 0, None, None
        for chunk in sdk.chat.completions.create(model="grok-2", messages=MESSAGES, **WITH_USAGE, extra_body={"x_sim": {"tokens": 20_000}}):
            if chunk.choices:
                chunks += bool(chunk.choices[0].delta.content)
                finish = chunk.choices[0].finish_reason or finish
            usage = chunk.usage or usage
        self.assertEqual(finish, "length")
        self.assertTrue(400 < chunks < 2000, f"{chunks} chunks of 1,500 tokens")
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        told(attempts[0].id, usage, outcome="ended")

    def test_a_stream_that_the_server_breaks_off_is_an_error(self):
        sdk, attempts = self.client("open")
        chunks = 0
        with self.assertRaises(openai.APIError) as caught:
            for _ in sdk.chat.completions.create(**HELLO, stream=True, extra_body={"x_sim": {"tokens": 9, "cut_after": 3}}):
                chunks += 1
        self.assertEqual((caught.exception.type, caught.exception.code), ("upstream_error", "upstream_cut"))
        self.assertEqual(chunks, 3)
        told(attempts[0].id, outcome="failed", least=3)

    def test_a_request_that_runs_into_the_sdks_timeout_is_cancelled_and_so_is_its_retry(self):
        sdk, attempts = self.client("open", max_retries=1, timeout=1.5)
        with self.assertRaises(openai.APITimeoutError):
            sdk.chat.completions.create(**HELLO, extra_body={"x_sim": {"delay_ms": 60_000}})
        self.assertEqual(len(attempts), 0, "none was answered")
        left("open", 2)
        await_freed("open")

    def slot_is_back(self, attempt):
        """After a stream of the caller single, which has a slot, was left."""
        await_freed("single")
        told(attempt.id, outcome="cancelled", least=1)
        sdk, _ = self.client("single")
        answer = sdk.chat.completions.create(**HELLO)
        told(answer._request_id, answer.usage)

    def slot_is_taken(self):
        self.assertEqual(in_flight("single"), 1)
        sdk, _ = self.client("single")
        with self.assertRaisesRegex(openai.RateLimitError, "requests at a time"):
            sdk.chat.completions.create(**HELLO)

    def test_a_client_that_closes_its_stream_has_its_slot_back(self):
        await_freed("single")
        sdk, attempts = self.client("single")
        stream = sdk.chat.completions.create(**HELLO, **SLOW)
        next(iter(stream))
        self.slot_is_taken()
        stream.close()
        self.slot_is_back(attempts[0])

    def test_a_client_that_leaves_its_stream_by_an_exception_has_its_slot_back(self):
        await_freed("single")
        sdk, attempts = self.client("single")
        with self.assertRaises(ZeroDivisionError), sdk.chat.completions.create(**HELLO, **SLOW) as stream:
            for _ in stream:
                self.slot_is_taken()
                raise ZeroDivisionError
        self.slot_is_back(attempts[0])

    def test_a_task_that_is_cancelled_in_its_stream_has_its_slot_back(self):
        async def run():
            sdk, attempts = self.async_client("single")
            async with sdk:
                begun = asyncio.Event()

                async def read():
                    async for _ in await sdk.chat.completions.create(**HELLO, **SLOW):
                        begun.set()

                task = asyncio.create_task(read())
                await begun.wait()
                await asyncio.to_thread(self.slot_is_taken)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(self.slot_is_back, attempts[0])

        await_freed("single")
        asyncio.run(run())
