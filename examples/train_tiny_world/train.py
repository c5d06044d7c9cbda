"""Trains tiny-world stage after stage; stopped by its time limit it goes on where it was. See README.md."""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from streamsynth.models.wan.schedule import Schedule
from streamsynth.models.wan.tiny_vae import TinyVae
from train_tiny_world import evaluate
from train_tiny_world.autoencoder_training import (
    AutoencoderSettings,
    AutoencoderTraining,
    normalise_latents,
    peak_signal_to_noise,
    reconstruct,
)
from train_tiny_world.checkpoints import load_networks, save_networks, save_sizes
from train_tiny_world.clips import CHUNK_FRAMES
from train_tiny_world.few_steps import Distillation, FewStepSettings, Networks, step_levels
from train_tiny_world.flow_training import FlowSettings, FlowTraining, LoneVelocity, Velocity
from train_tiny_world.judge import (
    EVERY,
    BatchPool,
    Judge,
    JudgeBatch,
    accuracies,
    clean_batch,
    load_judge,
    save_judge,
    train_judge,
)
from train_tiny_world.latent_bank import LatentBank
from train_tiny_world.networks import CONTEXT_CHUNKS, full_sizes, new_text_encoder, new_transformer, toy_sizes
from train_tiny_world.picture_pool import PicturePool
from train_tiny_world.rollout import LATENT_SIZE, World
from train_tiny_world.word_training import WordTraining

TRAINED = ("judge", "autoencoder", "words", "chunks", "flow", "few-steps")
STAGES = (*TRAINED, "report")


@dataclass(frozen=True)
class Plan:
    """Seconds of each stage, all calls together, and sizes of batches."""

    judge: float = 40
    autoencoder: float = 400
    words: float = 20
    chunks: float = 320
    flow: float = 700
    few_steps: float = 220
    judge_clips: int = 96
    judge_pool: int = 24
    picture_clips: int = 8
    pool: int = 256
    pool_part: int = 32
    pool_every: int = 8
    held: int = 64
    prompts: int = 32768
    clips: int = 48
    clip_chunks: int = 8
    bank: int = 24576
    bank_start: int = 6144
    bank_part: int = 256
    bank_every: float = 8
    """Seconds."""
    judged_clips: int = 64
    long_seconds: int = 60
    save_every: float = 90


TOY = Plan(
    judge=8,
    autoencoder=8,
    words=4,
    chunks=10,
    flow=15,
    few_steps=20,
    prompts=64,
    judge_clips=2,
    judge_pool=2,
    picture_clips=1,
    pool=2,
    pool_part=1,
    held=2,
    clips=2,
    clip_chunks=3,
    bank=4,
    bank_start=4,
    bank_part=2,
    bank_every=2,
    judged_clips=2,
    long_seconds=5,
    save_every=10,
)


class Run:
    """One call: the networks, where they are kept, and how much time is left."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.started = time.monotonic()
        self.limit: float = arguments.seconds
        self.end: str | None = arguments.end
        self.plan: Plan = replace(TOY if arguments.toy else Plan(), **_given(arguments))
        self.folder: Path = arguments.out
        self.publish_to: Path = arguments.publish or arguments.out / "published"
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.compiled = self.device.type == "cuda" and not arguments.plain
        self.seed: int = arguments.seed
        torch.manual_seed(self.seed)
        torch.set_float32_matmul_precision("high")
        # What does not compile on a machine runs as it is: slower, but device time is not lost.
        torch._dynamo.config.suppress_errors = True
        self.sizes = toy_sizes() if arguments.toy else full_sizes()
        self.vae = TinyVae(self.sizes.vae).to(self.device, memory_format=torch.channels_last)
        self.encoder = new_text_encoder(self.sizes.text).to(self.device)
        self.transformer = new_transformer(self.sizes.transformer).to(self.device)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stage, self.spent = arguments.begin or STAGES[0], 0.0
        self.training: dict[str, object] | None = None
        if self.state_file.exists():
            self._resume()
        elif arguments.start:
            self._start_from(arguments.start)

    @property
    def networks(self) -> dict[str, nn.Module]:
        return {"vae": self.vae, "encoder": self.encoder, "transformer": self.transformer}

    @property
    def judge_file(self) -> Path:
        return self.folder / "judge.safetensors"

    @property
    def state_file(self) -> Path:
        """What another call on this machine goes on from; it counts before where to start."""
        return self.folder / "state.pt"

    @property
    def bank_file(self) -> Path:
        """What the first stage that needs it rendered, encoded by the autoencoder as it is."""
        return self.folder / "bank.pt"

    @property
    def teacher_file(self) -> Path:
        return self.folder / "teacher.pt"

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def world(self, schedule: Schedule, committed_level: float = 0.0) -> World:
        return World(self.vae, self.encoder, self.transformer, schedule, committed_level)

    def velocity(self, transformer: nn.Module) -> Velocity:
        return Velocity(transformer, self.plan.clip_chunks, LATENT_SIZE, self.device, compiled=self.compiled)

    def save(self, stage: str, spent: float, training: dict[str, object] | None = None) -> None:
        """Written whole or not at all."""
        self.stage, self.spent = stage, spent
        state = {name: module.state_dict() for name, module in self.networks.items()}
        fresh = self.state_file.with_suffix(".new")
        torch.save({"networks": state, "training": training, "stage": stage, "spent": spent}, fresh)
        fresh.rename(self.state_file)

    def publish(self) -> None:
        """float16, in pieces small enough to carry, with the judge."""
        few = FewStepSettings()
        save_networks(self.publish_to, self.networks, name="world")
        save_sizes(self.publish_to, self.sizes, {"sigmas": list(few.schedule.sigmas), "chunk_frames": CHUNK_FRAMES,
                                                 "context_chunks": CONTEXT_CHUNKS})  # fmt: skip
        if self.judge_file.exists():
            (self.publish_to / "judge.safetensors").write_bytes(self.judge_file.read_bytes())

    def _start_from(self, folder: Path) -> None:
        if not load_networks(folder, self.networks, name="world"):
            raise FileNotFoundError(f"no world-*.safetensors in {folder}")
        self.judge_file.write_bytes((folder / "judge.safetensors").read_bytes())

    def _resume(self) -> None:
        state = torch.load(self.state_file, map_location=self.device, weights_only=True)
        for name, module in self.networks.items():
            module.load_state_dict(state["networks"][name])
        self.stage, self.spent, self.training = state["stage"], state["spent"], state["training"]
        logging.info("going on with %s after %.0f s of it", self.stage, self.spent)


class Stopwatch:
    """A stage's own time, over all calls; ends with the stage or with the call, whichever is first."""

    def __init__(self, run: Run, seconds: float) -> None:
        self._run, self._seconds, self._before, self._begun = run, seconds, run.spent, time.monotonic()
        self.saved = self._begun

    @property
    def spent(self) -> float:
        return self._before + time.monotonic() - self._begun

    @property
    def progress(self) -> float:
        return min(1.0, self.spent / self._seconds)

    @property
    def over(self) -> bool:
        return self.spent >= self._seconds or self._run.elapsed() >= self._run.limit

    @property
    def finished(self) -> bool:
        return self.spent >= self._seconds

    def due(self) -> bool:
        """Whether it is time to save; then the next time is a while away."""
        if time.monotonic() - self.saved < self._run.plan.save_every:
            return False
        self.saved = time.monotonic()
        return True


def judge_stage(run: Run) -> bool:
    watch = Stopwatch(run, run.plan.judge)
    judge = Judge().to(run.device)
    pool = BatchPool(run.plan.judge_clips, run.plan.judge_pool, torch.Generator(run.device).manual_seed(run.seed + 1))

    def next_batch() -> JudgeBatch | None:
        return None if watch.over else pool.draw()

    steps = train_judge(judge, next_batch, lambda: watch.progress)
    held = clean_batch(4 * run.plan.judge_clips, torch.Generator(run.device).manual_seed(run.seed + 2))
    logging.info("judge, %d steps, held-out renders: %s", steps, evaluate.as_line(accuracies(judge, held)))
    save_judge(judge, run.judge_file)
    return True


def autoencoder_stage(run: Run) -> bool:
    watch = Stopwatch(run, run.plan.autoencoder)
    training = AutoencoderTraining(run.vae, AutoencoderSettings())
    _restore(training, run.training)
    plan = run.plan
    pool = PicturePool(plan.pool, run.seed + 3 + int(run.spent), run.device)
    held = PicturePool(plan.held, 4, run.device).draw(plan.held).pixels
    normalised = watch.progress > 0.6
    losses: dict[str, torch.Tensor] = {}
    while not watch.over:
        if watch.progress > 0.6 and not normalised:
            normalise_latents(run.vae, held)
            training.average = [weight.detach().clone() for weight in training.weights]
            normalised = True
        if training.steps % plan.pool_every == 0:
            pool.replace(plan.pool_part)
        losses = training.step(pool.draw(plan.picture_clips), watch.progress)
        if watch.due():
            values = {name: float(value) for name, value in losses.items()}
            logging.info("%4.0f s, step %d: %s, %.1f dB", watch.spent, training.steps, evaluate.as_line(values),
                         peak_signal_to_noise(run.vae, held))  # fmt: skip
            run.save("autoencoder", watch.spent, _kept(training))
    if watch.finished:
        run.bank_file.unlink(missing_ok=True)
        with torch.no_grad():
            for weight, average in zip(training.weights, training.average, strict=True):
                weight.copy_(average)
        logging.info(
            "autoencoder, %d steps: %.1f dB on held-out clips", training.steps, peak_signal_to_noise(run.vae, held)
        )
        judge = load_judge(run.judge_file, run.device)
        batch = clean_batch(run.plan.judged_clips, torch.Generator(run.device).manual_seed(run.seed + 2), every=1)
        made = reconstruct(run.vae, batch.pictures)[:, ::EVERY]
        logging.info(
            "autoencoder, reconstructions: %s", evaluate.as_line(accuracies(judge, replace(batch, pictures=made)))
        )
    run.save("autoencoder", watch.spent, _kept(training))
    return watch.finished


def words_stage(run: Run) -> bool:
    watch = Stopwatch(run, run.plan.words)
    training = WordTraining(run.encoder, run.plan.prompts, run.seed + 8)
    steps, right = 0, torch.zeros(())
    while not watch.over:
        right = training.step(512, watch.progress)
        steps += 1
    logging.info("words, %d steps: %.4f of what prompts say is read right", steps, float(right))
    return True


def chunks_stage(run: Run) -> bool:
    settings = FlowSettings(alone=0, recached=0, decay_from=1)
    velocity = LoneVelocity(run.transformer, LATENT_SIZE, run.device, compiled=run.compiled)
    training = FlowTraining(run.transformer, run.encoder, settings, velocity)
    finished = _train_flow(run, "chunks", run.plan.chunks, training, training)
    if finished:
        _first_chunks_judged(run)
    return finished


def flow_stage(run: Run) -> bool:
    training = FlowTraining(run.transformer, run.encoder, FlowSettings(), run.velocity(run.transformer))
    finished = _train_flow(run, "flow", run.plan.flow, training, training)
    if finished:
        torch.save({name: module.state_dict() for name, module in run.networks.items()}, run.teacher_file)
        _judged(run, "flow, 8 steps", run.world(step_levels(8, FlowSettings().shift)))
        _judged(run, "flow, few steps", run.world(FewStepSettings().schedule))
    return finished


def few_steps_stage(run: Run) -> bool:
    student = Networks(run.transformer, run.encoder)
    teacher = student.copy()
    if run.teacher_file.exists():
        kept = torch.load(run.teacher_file, map_location=run.device, weights_only=True)
        teacher.transformer.load_state_dict(kept["transformer"])
        teacher.encoder.load_state_dict(kept["encoder"])
    distillation = Distillation(student, teacher, FewStepSettings(), run.velocity, run.seed)
    return _train_flow(run, "few-steps", run.plan.few_steps, distillation, distillation.training)


def _train_flow(
    run: Run, stage: str, seconds: float, stepper: FlowTraining | Distillation, training: FlowTraining
) -> bool:
    _restore(training, run.training)
    plan = run.plan
    bank = LatentBank(run.vae, plan.bank, plan.clip_chunks, run.seed + 5 + int(run.spent), run.device)
    begun = time.monotonic()
    if run.bank_file.exists():
        bank.load(run.bank_file)
    while bank.filled < plan.bank_start:
        bank.add(plan.bank_part)
    logging.info("%d pictures are there after %.1f s", bank.filled * bank.pictures, time.monotonic() - begun)
    if not run.bank_file.exists():
        bank.save(run.bank_file)
    watch = Stopwatch(run, seconds)
    sum_of_losses, counted, since = 0.0, 0, time.monotonic()
    refreshed = watch.spent
    while not watch.over:
        if watch.spent - refreshed >= plan.bank_every:
            refreshed = watch.spent
            bank.add(plan.bank_part)
        loss = stepper.step(bank.draw(plan.clips), watch.progress)
        sum_of_losses, counted = sum_of_losses + loss, counted + 1
        if watch.due():
            rate = (time.monotonic() - since) / counted * 1e3
            logging.info("%4.0f s, step %d, %.0f ms: %.4f", watch.spent, training.steps, rate, sum_of_losses / counted)
            run.save(stage, watch.spent, _kept(training))
            if stage == "chunks":
                training.swap_average()
                _first_chunks_judged(run)
                training.swap_average()
            sum_of_losses, counted, since = 0.0, 0, time.monotonic()
    run.save(stage, watch.spent, _kept(training))
    training.swap_average()
    if not watch.finished:
        if stage != "chunks":
            _judged(run, f"{stage}, unfinished", run.world(FewStepSettings().schedule))
        run.publish()
        training.swap_average()
    return watch.finished


def _kept(training: AutoencoderTraining | FlowTraining) -> dict[str, object]:
    return {"optimizer": training.optimizer.state_dict(), "average": training.average, "steps": training.steps}


def _restore(training: AutoencoderTraining | FlowTraining, kept: dict[str, object] | None) -> None:
    if kept is not None:
        training.optimizer.load_state_dict(kept["optimizer"])  # type: ignore[arg-type]
        training.average = kept["average"]  # type: ignore[assignment]
        training.steps = kept["steps"]  # type: ignore[assignment]


def _judged(run: Run, name: str, world: World) -> None:
    judge = load_judge(run.judge_file, run.device)
    followed = evaluate.prompt_following(world, judge, run.plan.judged_clips, run.seed + 6)
    logging.info("%s, prompts followed: %s", name, evaluate.as_line(followed))


def _first_chunks_judged(run: Run) -> None:
    judge = load_judge(run.judge_file, run.device)
    world = run.world(step_levels(8, FlowSettings().shift))
    followed = evaluate.first_chunks_following(world, judge, run.plan.judged_clips, run.seed + 6)
    logging.info("first chunks, 8 steps, prompts followed: %s", evaluate.as_line(followed))


def report_stage(run: Run) -> bool:
    run.publish()
    judge = load_judge(run.judge_file, run.device)
    schedule = FewStepSettings().schedule
    for steps in (2, 3, 4):
        _judged(run, f"few steps, {steps}", run.world(step_levels(steps, FewStepSettings().shift)))
    for attribute, found in evaluate.steering(run.world(schedule), judge, run.plan.judged_clips, run.seed + 7).items():
        logging.info("change of %s: %s", attribute, evaluate.as_line(asdict(found)))
    for level in (0.0, 0.05, 0.1, 0.2):
        kept = evaluate.drift(run.world(schedule, level), judge, run.plan.judged_clips // 2, run.plan.long_seconds, 8)
        logging.info("committed at %.2f, (second, right, spread): %s", level,
                     json.dumps([[round(value, 3) for value in row] for row in kept]))  # fmt: skip
    evaluate.contact_sheet(run.world(schedule), _SHOWN, run.publish_to / "sheet.png", run.seed)
    return True


_SHOWN = [
    (
        "a red ball bouncing over a green meadow by day",
        "a blue ball bouncing over a green meadow at night, snow falling",
    ),
    ("three yellow stars orbiting in space", "three purple stars orbiting over the sea at sunset"),
    ("two white squares moving left in a city at night, in the rain", "fog"),
    (
        "a green triangle growing in the desert at dusk, clear sky",
        "two green triangles moving right in the desert at dusk",
    ),
]

_RUN = {
    "judge": judge_stage,
    "autoencoder": autoencoder_stage,
    "words": words_stage,
    "chunks": chunks_stage,
    "flow": flow_stage,
    "few-steps": few_steps_stage,
    "report": report_stage,
}


def train(run: Run) -> None:
    while run.stage != "done" and run.elapsed() < run.limit:
        logging.info("%4.0f s: %s", run.elapsed(), run.stage)
        if not _RUN[run.stage](run):
            break
        run.training = None
        following = [*STAGES, "done"][STAGES.index(run.stage) + 1]
        ended = run.stage == run.end
        run.save(following, 0.0)
        if ended:
            break
    run.publish()
    logging.info("%4.0f s: stopped before %s", run.elapsed(), run.stage)


def _given(arguments: argparse.Namespace) -> dict[str, float]:
    named = {name.replace("-", "_") for name in TRAINED}
    return {name: value for name, value in vars(arguments).items() if name in named and value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the state that a later call goes on from")
    parser.add_argument("--publish", type=Path, help="folder for float16 weights, judge and pictures")
    parser.add_argument("--seconds", type=float, default=1e9, help="end this call after about so long")
    parser.add_argument("--start", type=Path, help="folder of published networks to begin from, and of the judge")
    parser.add_argument("--begin", choices=STAGES, help="the stage to begin with, where nothing is to be gone on with")
    parser.add_argument("--end", choices=STAGES, help="the stage to stop after")
    for name in TRAINED:
        parser.add_argument(f"--{name}", type=float, help="seconds of this stage, all calls together")
    parser.add_argument("--toy", action="store_true", help="every step at a size that a CPU does in two minutes")
    parser.add_argument("--plain", action="store_true", help="do not compile")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    (arguments.publish or arguments.out).mkdir(parents=True, exist_ok=True)
    log = logging.FileHandler((arguments.publish or arguments.out) / "log.txt")
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[logging.StreamHandler(), log])
    train(Run(arguments))


if __name__ == "__main__":
    main()
