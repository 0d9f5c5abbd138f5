"""The scheduler of the simulated server: requests → micro-batches in slots → passes and results.

Follows what SGLang 0.5.23 does (`srt/managers/scheduler_pp_mixin.py`): slots take turns in a fixed
order; what waits when a slot's turn comes joins it up to `pp_max_micro_batch_size` and stays for
life; prefill goes before decode; chunks of a long prompt ride on successive slots.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from exporter.simulator.activity import CardActivity
from exporter.simulator.clients import Client, Request, client_for
from exporter.simulator.scenarios import Scenario
from exporter.simulator.stages import StageChain

_TURN_SECONDS = 30e-6
"""What the host needs to pass an empty slot."""
_RETRACT_DECODE_STEPS = 20
_HIGHEST_NEW_TOKEN_RATIO, _LOWEST_NEW_TOKEN_RATIO, _RATIO_DECAY = 0.7, 0.1, 0.001


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """A prefill pass whose output came back."""

    at: float
    new_seqs: int
    new_tokens: int
    running_reqs: int
    queued_reqs: int
    pending_tokens: int
    used_tokens: int
    forward_seconds: tuple[float, ...]
    """Per stage, from the start of the simulation to the end of this pass."""


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """A decode pass whose output came back: one token for each of its requests."""

    at: float
    running_reqs: int
    queued_reqs: int
    used_tokens: int
    forward_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Retraction:
    """Requests thrown back into the queue because the KV pool was full."""

    at: float
    retracted_reqs: int
    gained_tokens: int
    ratio_before: float
    ratio_after: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Requests answered in full."""

    at: float
    requests: int


Happening = PrefillResult | DecodeResult | Retraction | Finished


@dataclass(slots=True)
class _Slot:
    running: list[Request] = field(default_factory=list)
    ready_at: float = 0.0
    """When the result of its last pass is back at the first stage."""
    posted_at: float = 0.0
    """When the last stage began to work on it."""


class Pipeline:
    """Eight stages in simulated time; `advance` plays everything that begins before an instant."""

    def __init__(
        self,
        scenario: Scenario,
        cards: Sequence[CardActivity],
        rng: random.Random,
        started_at: float,
        loaded_at: float,
    ) -> None:
        self.chain = StageChain(scenario, cards, rng, started_at)
        self.generated_tokens = 0
        self.used_tokens = 0
        self._scenario = scenario
        self._cards = cards
        self._clients: list[Client] = [client_for(load, rng, loaded_at) for load in scenario.loads]
        self._waiting: deque[Request] = deque()
        self._chunked: Request | None = None
        self._slots = [_Slot() for _ in range(scenario.slots)]
        self._turn = 0
        self._host_at = started_at
        self._new_token_ratio = _HIGHEST_NEW_TOKEN_RATIO
        self._happenings: list[Happening] = []

    @property
    def slot_sizes(self) -> tuple[int, ...]:
        """Requests in each slot, in slot order."""
        return tuple(len(slot.running) for slot in self._slots)

    def advance(self, to: float) -> list[Happening]:
        """Plays all turns before `to`; what they lead to may happen after it."""
        while True:
            slot = self._slots[self._turn]
            at = max(self._host_at, slot.ready_at)
            if not self._has_work():
                arrivals = [client.next_arrival_at() for client in self._clients]
                at = max(at, min((each for each in arrivals if each is not None), default=to))
            if at >= to:
                break
            self._take_turn(slot, at)
            self._turn = (self._turn + 1) % len(self._slots)
            self._host_at = at + _TURN_SECONDS
        self._close_time(self._slots[self._turn], to)
        happenings, self._happenings = self._happenings, []
        return happenings

    def stand_still(self, until: float) -> None:
        """Jumps over a span in which the whole machine slept."""
        self._host_at = max(self._host_at, until)
        for card in self._cards:
            card.sleep_until(until)

    def _close_time(self, next_slot: _Slot, to: float) -> None:
        """What each card does until `to`, after all that has begun before."""
        if next_slot.running:
            # The first stage is the only one whose wait can have begun before its next pass is known.
            self._cards[0].wait(next_slot.posted_at, min(next_slot.ready_at, to))
        for card in self._cards:
            card.idle_until(to)

    def _has_work(self) -> bool:
        return bool(self._waiting or self._chunked or any(slot.running for slot in self._slots))

    def _take_turn(self, slot: _Slot, at: float) -> None:
        for client in self._clients:
            self._waiting.extend(client.released(at))
        running_reqs = len(slot.running)
        joining, tokens, new_seqs = self._prefill_batch(slot)
        if tokens:
            self._prefill(slot, at, joining, tokens, new_seqs)
        elif running_reqs:
            self._decode(slot, at)

    # --- prefill -------------------------------------------------------------------------------

    def _prefill_batch(self, slot: _Slot) -> tuple[list[Request], int, int]:
        """Who joins the slot for good, how many tokens the pass computes, for how many requests."""
        budget = self._scenario.chunked_prefill_size
        room = self._scenario.pp_max_micro_batch_size - len(slot.running)
        joining: list[Request] = []
        tokens = new_seqs = 0
        while budget > 0 and room > 0:
            request = self._chunked
            if request is None:
                if not self._waiting or not self._fits(self._waiting[0], slot, tokens):
                    break
                request = self._waiting.popleft()
            self._chunked = None
            chunk = min(budget, request.prompt_tokens - request.held_tokens)
            request.held_tokens += chunk
            budget -= chunk
            room -= 1
            tokens += chunk
            new_seqs += 1
            if request.held_tokens < request.prompt_tokens:
                self._chunked = request
            else:
                joining.append(request)
        return joining, tokens, new_seqs

    def _fits(self, request: Request, slot: _Slot, taken_tokens: int) -> bool:
        running = sum(each.remaining_tokens for each in slot.running) + request.remaining_tokens
        reserved = running * self._new_token_ratio
        needed = self.used_tokens + taken_tokens + request.prompt_tokens + reserved
        return needed <= self._scenario.kv_tokens

    def _prefill(
        self, slot: _Slot, at: float, joining: list[Request], tokens: int, new_seqs: int
    ) -> None:
        running_reqs = len(slot.running)
        seconds = self._scenario.cost.prefill_seconds(tokens)
        forward_seconds = self._run(slot, at, seconds, tokens, prefill=True)
        self.used_tokens += tokens
        self._happenings.append(
            PrefillResult(
                slot.ready_at,
                new_seqs,
                tokens,
                running_reqs,
                len(self._waiting),
                self._pending_tokens(),
                self.used_tokens,
                forward_seconds,
            )
        )
        slot.running.extend(joining)
        self._hand_out_tokens(slot, joining)

    def _pending_tokens(self) -> int:
        pending = sum(each.prompt_tokens for each in self._waiting)
        if self._chunked is not None:
            pending += self._chunked.prompt_tokens - self._chunked.held_tokens
        return pending

    # --- decode --------------------------------------------------------------------------------

    def _decode(self, slot: _Slot, at: float) -> None:
        if self.used_tokens + len(slot.running) > self._scenario.kv_tokens:
            self._retract(slot, at)
        reqs = len(slot.running)
        seconds = self._scenario.cost.decode_seconds(reqs)
        forward_seconds = self._run(slot, at, seconds, reqs, prefill=False)
        self.used_tokens += reqs
        for request in slot.running:
            request.held_tokens += 1
        self._happenings.append(
            DecodeResult(slot.ready_at, reqs, len(self._waiting), self.used_tokens, forward_seconds)
        )
        self._new_token_ratio = max(_LOWEST_NEW_TOKEN_RATIO, self._new_token_ratio - _RATIO_DECAY)
        self._hand_out_tokens(slot, slot.running)

    def _retract(self, slot: _Slot, at: float) -> None:
        """Throws out those with the least output until 20 more steps fit, but keeps one."""
        before_tokens, before_ratio, retracted = self.used_tokens, self._new_token_ratio, 0
        slot.running.sort(key=lambda request: request.generated_tokens, reverse=True)
        while len(slot.running) > 1:
            wanted = len(slot.running) * _RETRACT_DECODE_STEPS
            if self.used_tokens + wanted <= self._scenario.kv_tokens:
                break
            request = slot.running.pop()
            self.used_tokens -= request.held_tokens
            # What it generated is computed again with its prompt.
            request.prompt_tokens, request.held_tokens = request.held_tokens, 0
            self._waiting.append(request)
            retracted += 1
        self._new_token_ratio = min(1.0, max(before_ratio, 0.3) + 0.1)
        if retracted:
            gained = before_tokens - self.used_tokens
            self._happenings.append(
                Retraction(at, retracted, gained, before_ratio, self._new_token_ratio)
            )

    # --- both ----------------------------------------------------------------------------------

    def _run(
        self, slot: _Slot, at: float, seconds: float, tokens: int, *, prefill: bool
    ) -> tuple[float, ...]:
        """Sends the slot's micro-batch on its way; returns the forward seconds of all stages."""
        waited = bool(slot.running)
        posted_at = slot.posted_at if waited else at
        journey = self.chain.run(posted_at, at, seconds, tokens, prefill=prefill)
        slot.posted_at = journey.last_stage_started_at
        slot.ready_at = journey.ended_at + self._scenario.cost.hop_seconds
        return journey.forward_seconds

    def _hand_out_tokens(self, slot: _Slot, requests: list[Request]) -> None:
        """Gives each request a token; those that are complete leave and their client knows."""
        self.generated_tokens += len(requests)
        complete = []
        for request in requests:
            request.generated_tokens += 1
            if request.generated_tokens >= request.output_tokens:
                complete.append(request)
        if not complete:
            return
        slot.running = [each for each in slot.running if each not in complete]
        for request in complete:
            self.used_tokens -= request.held_tokens
            request.client.finished(request, slot.ready_at)
        self._happenings.append(Finished(slot.ready_at, len(complete)))
