"""The settings of a pre-training: a light default and PerFedSDE-NAS's sizes (supplement C, D)."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt

from fedtailor.pretrain import network_training as trainings
from fedtailor.pretrain import supernet_training as supernets
from fedtailor.pretrain.network_training import Training
from fedtailor.pretrain.predictor_training import Target
from fedtailor.pretrain.sub_tasks import TaskDraw
from fedtailor.pretrain.supernet_training import SupernetTraining
from fedtailor.search.diffusion import predictor as predictors
from fedtailor.search.diffusion import score_network as scores
from fedtailor.search.diffusion.generator import Sampling
from fedtailor.search.diffusion.predictor import PredictorSettings
from fedtailor.search.diffusion.score_network import ScoreSettings
from fedtailor.search.diffusion.sde import SDE, VE, VP

Positive: TypeAlias = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class Pretraining:
    """How a generator is made; the names are the keys of overrides, such as supernet.epochs=2."""

    seed: int = 0
    supernet: SupernetTraining = SupernetTraining()  # noqa: RUF009 - frozen, as those below
    images: Positive = 6000  # held out of the supernet's training, to evaluate architectures on
    calibration: Annotated[int, Ge(0)] = 0  # images of batch-norm statistics; 0: each batch's own
    archs: Annotated[int, Ge(4)] = 1200
    tasks: Annotated[int, Ge(4)] = 500
    draw: TaskDraw = TaskDraw()  # noqa: RUF009
    # one task, one of these images and one architecture in so many judge the predictor
    kept: Annotated[int, Ge(2)] = 4
    sde: Literal["ve", "vp"] = "ve"
    s_max: Annotated[float, Gt(0.1)] = 5.0  # the noise at the end of ve
    score: ScoreSettings = scores.LIGHT
    score_archs: Positive = 50_000
    score_training: Training = Training(1000, 128, 1e-3)  # noqa: RUF009
    predictor: PredictorSettings = predictors.LIGHT
    predictor_training: Training = Training(6000, 256, 1e-3)  # noqa: RUF009
    per_task: Positive = 16  # architectures of one task in a batch
    target: Target = "pooled"  # what the predictor learns; pooled: likelihoods, less of chance
    over: Literal["task", "all"] = "task"  # where targets are brought to mean 0, deviation 1
    sampling: Sampling = Sampling()  # noqa: RUF009
    drawn: Positive = 500  # tables that judge the generator
    clients: Annotated[int, Ge(0)] = 16  # kept tasks for which architectures are drawn and tested
    per_client: Positive = 5

    def equation(self) -> SDE:
        """Return the equation by which architectures become noise."""
        return VE(s_max=self.s_max) if self.sde == "ve" else VP()


DEFAULT = Pretraining()
PAPER = Pretraining(
    supernet=supernets.PAPER,
    images=10_000,
    archs=500_000,
    score=scores.PAPER,
    score_archs=trainings.PAPER_SCORE_ARCHITECTURES,
    score_training=trainings.PAPER_SCORE,
    predictor=predictors.PAPER,
    predictor_training=trainings.PAPER_PREDICTOR,
    target="accuracy",
    over="all",
    sampling=Sampling("langevin", 1000),
)
RECIPES = {"default": DEFAULT, "paper": PAPER}
SUPERNETS = {  # of the default recipe, where a space does better with other settings
    "darts": SupernetTraining(optimizer="adamw", lr=0.004, weight_decay=0.01),
    "mobilenetv3": SupernetTraining(epochs=12),
}


def recipe_for(name: str, space: str) -> Pretraining:
    """Return the settings of a recipe for a space."""
    how = RECIPES[name]
    return replace(how, supernet=SUPERNETS.get(space, how.supernet)) if how is DEFAULT else how
