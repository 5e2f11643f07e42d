"""The configuration of an experiment: one strict YAML file, read by every command.

There is one module per section, which declares every key with its default and its meaning; docs/reference/config.md is
made from them. The defaults are the settings of mRAG (Salemi et al. 2025, arXiv 2506.10844, appendix D). An unknown key
is an error that names the closest known one. `--set training.epochs=2` on any command overrides one key. A system's own
settings are declared beside the system (`agents/<name>.py`, class Settings).
"""

from ratchet.core.config.evaluation import EvaluationConfig, SweepConfig, TrainedControl
from ratchet.core.config.experiment import Config
from ratchet.core.config.load import load_config, load_members
from ratchet.core.config.models import ModelConfig, ServeConfig, ThoughtsConfig
from ratchet.core.config.questions import (
    HUB,
    SPLITS,
    GenerationConfig,
    LeakageConfig,
    QuestionsConfig,
    Split,
    SplitConfig,
)
from ratchet.core.config.retrieval import (
    DEFAULT_EMBEDDER,
    WORDS,
    EmbedderConfig,
    EncoderConfig,
    FusionConfig,
    IndexConfig,
    McpConfig,
    MemoryConfig,
    PluginConfig,
    RerankConfig,
    SourceConfig,
    Sources,
    Thresholds,
)
from ratchet.core.config.rewards import RewardsConfig, RunsConfig, SelectConfig
from ratchet.core.config.section import PathText, PluginName, ScoreName, Section, is_missing, missing_error, written
from ratchet.core.config.system import ExploreConfig, RoleConfig, SamplingConfig, SystemConfig, TeacherConfig
from ratchet.core.config.training import LoraConfig, PreferenceConfig, RoundsConfig, TrainingConfig
from ratchet.core.parsing import parse
