"""Noise schedules and solvers against diffusers' schedulers, and what they are exact on."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from wan_models import assert_near, noise

from streamsynth.errors import StreamSynthError
from streamsynth.models.wan.schedule import (
    Schedule,
    clean_of,
    euler_schedule,
    euler_step,
    few_step_schedule,
    guided,
    unipc_schedule,
    with_noise,
)
from streamsynth.models.wan.unipc import UniPcHistory, unipc_step


def flow_at(sample: torch.Tensor, timestep: float) -> torch.Tensor:
    """A model whose flow curves with the sample and the time step."""
    return torch.sin(sample * 1.3) + sample * (timestep / 1000) - 0.4


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0])
@pytest.mark.parametrize("steps", [1, 4, 25])
def test_euler_samples_as_the_reference(steps: int, shift: float) -> None:
    reference = FlowMatchEulerDiscreteScheduler(shift=shift)
    reference.set_timesteps(steps)
    schedule = euler_schedule(steps, shift)
    assert_near(torch.tensor(schedule.sigmas), reference.sigmas, 1e-6)
    assert_near(torch.tensor(schedule.timesteps), reference.timesteps, 1e-6)
    ours = theirs = noise(2, 3, 2, 4, 4)
    for step, timestep in enumerate(reference.timesteps):
        ours = euler_step(ours, flow_at(ours, schedule.timesteps[step]), schedule, step)
        theirs = reference.step(flow_at(theirs, float(timestep)), timestep, theirs).prev_sample
    assert_near(ours, theirs, 1e-5)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("shift", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 40])
def test_unipc_samples_as_the_reference(steps: int, shift: float, order: int) -> None:
    """As Wan's pipelines configure it, which is of order 2, and of the orders beside."""
    reference = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift, solver_order=order
    )
    reference.set_timesteps(steps)
    schedule = unipc_schedule(steps, shift)
    assert_near(torch.tensor(schedule.sigmas), reference.sigmas, 1e-6)
    assert schedule.timesteps == tuple(reference.timesteps.float().tolist())
    ours = theirs = noise(2, 3, 2, 4, 4)
    history: UniPcHistory | None = None
    for step, timestep in enumerate(reference.timesteps):
        flow = flow_at(ours, schedule.timesteps[step])
        ours, history = unipc_step(ours, flow, schedule, step, history, order=order)
        theirs = reference.step(flow_at(theirs, float(timestep)), timestep, theirs).prev_sample
    assert_near(ours, theirs)


def test_a_step_changes_nothing_that_it_was_given() -> None:
    """Steps are pure: the same one twice is the same, so a rollout can be gone back to."""
    schedule, sample = unipc_schedule(5, 3.0), noise(1, 3, 1, 4, 4)
    first, history = unipc_step(sample, flow_at(sample, 9), schedule, 0, None)
    again = [unipc_step(first, flow_at(first, 8), schedule, 1, history)[0] for _ in range(2)]
    assert torch.equal(*again)
    with pytest.raises(StreamSynthError, match="history"):
        unipc_step(first, first, schedule, 1, None)


def test_few_steps_are_warped_to_the_levels_of_self_forcing() -> None:
    """Its published configuration: 1000, 750, 500, 250 at shift 5; some files end the list with a 0."""
    schedule = few_step_schedule([1000, 750, 500, 250], 5.0)
    assert schedule.timesteps == pytest.approx((1000.0, 937.5, 833.3333, 625.0))
    assert schedule.sigmas == pytest.approx((1.0, 0.9375, 0.8333333, 0.625, 0.0))
    assert few_step_schedule([1000, 750, 500, 250, 0], 5.0) == schedule
    assert few_step_schedule([1000, 500], 5.0, warp=False).timesteps == (1000.0, 500.0)


def test_a_model_that_knows_the_clean_sample_is_believed_at_every_level() -> None:
    clean, fresh = noise(1, 3, 2, 4, 4), noise(1, 3, 2, 4, 4, seed=2)
    schedule = few_step_schedule([1000, 750, 500, 250], 5.0)
    sample = with_noise(clean, fresh, schedule.sigmas[0])
    assert torch.equal(sample, fresh)
    for step in range(schedule.steps):
        sample = with_noise(clean, fresh, schedule.sigmas[step])
        assert_near(clean_of(sample, fresh - clean, schedule.sigmas[step]), clean, 1e-6)
        assert_near(
            euler_step(sample, fresh - clean, schedule, step), with_noise(clean, fresh, schedule.sigmas[step + 1]), 1e-6
        )


def test_noise_levels_may_differ_from_frame_to_frame() -> None:
    clean, fresh = noise(2, 3, 2, 4, 4), noise(2, 3, 2, 4, 4, seed=2)
    sigmas = torch.tensor([[0.0, 1.0], [0.5, 0.25]])[:, None, :, None, None]
    mixed = with_noise(clean, fresh, sigmas)
    assert torch.equal(mixed[0, :, 0], clean[0, :, 0])
    assert torch.equal(mixed[0, :, 1], fresh[0, :, 1])
    assert_near(clean_of(mixed, fresh - clean, sigmas), clean, 1e-6)


def test_guidance_of_one_is_the_prompt_alone_and_of_none_its_absence() -> None:
    with_prompt, without = noise(1, 3, 1, 2, 2), noise(1, 3, 1, 2, 2, seed=2)
    assert torch.equal(guided(with_prompt, without, 0.0), without)
    assert_near(guided(with_prompt, without, 5.0), without + 5.0 * (with_prompt - without), 1e-6)


@pytest.mark.parametrize("steps", [[], [500, 750], [1001], [500, 500, -1]])
def test_a_list_of_steps_that_is_none_is_refused(steps: list[int]) -> None:
    with pytest.raises(StreamSynthError):
        few_step_schedule(steps, 5.0)
    with pytest.raises(StreamSynthError, match="shift"):
        unipc_schedule(4, 0.0)
    assert Schedule((1.0, 0.0), (1000.0,)).steps == 1
