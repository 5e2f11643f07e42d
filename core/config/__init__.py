"""The configuration of an experiment: one strict YAML file, read by every command.

There is one module per section, which declares every key with its default and its meaning; docs/reference/config.md is
made from them. The defaults are the settings of mRAG (Salemi et al. 2025, arXiv 2506.10844, appendix D). An unknown key
is an error that names the closest known one. `--set training.epochs=2` on any command overrides one key. A system's own
settings are declared beside the system (`agents/<name>.py`, class Settings).
"""

from ratchet.core.config.encoders import DEFAULT_EMBEDDER, DenseConfig, EmbedderConfig, EncoderConfig, Thresholds
from ratchet.core.config.evaluation import EvaluationConfig, TrainedControl
from ratchet.core.config.experiment import Config
from ratchet.core.config.generation import GenerationConfig
from ratchet.core.config.index import WORDS, IndexConfig
from ratchet.core.config.load import load_config, load_members
from ratchet.core.config.memory import MemoryConfig
from ratchet.core.config.missing import is_missing, missing_error
from ratchet.core.config.models import ModelConfig, ServeConfig, ThoughtsConfig
from ratchet.core.config.paths import PathText, PluginName, ScoreName, written
from ratchet.core.config.questions import HUB, SPLITS, LeakageConfig, QuestionsConfig, Split, SplitConfig
from ratchet.core.config.rewards import CorrectnessConfig, FaithfulnessConfig, RewardsConfig, SelectConfig
from ratchet.core.config.rounds import RoundsConfig
from ratchet.core.config.sampling import SamplingConfig
from ratchet.core.config.section import Section
from ratchet.core.config.sources import McpConfig, PluginConfig, SourceConfig, Sources
from ratchet.core.config.sweep import SweepConfig
from ratchet.core.config.system import RoleConfig, SystemConfig
from ratchet.core.config.training import LoraConfig, PreferenceConfig, TrainingConfig
from ratchet.core.parsing import parse
