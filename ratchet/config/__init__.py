"""The configuration of an experiment: one strict YAML file, read by every command.

There is one module per section, which declares every key with its default and its meaning; docs/reference/config.md is
made from them. The defaults are the settings of mRAG (Salemi et al. 2025, arXiv 2506.10844, appendix D). An unknown key
is an error that names the closest known one. `--set training.epochs=2` on any command overrides one key. A system's own
settings are declared beside the system (`agents/<name>.py`, class Settings).
"""

from ratchet.config.encoders import DEFAULT_EMBEDDER, DenseConfig, EmbedderConfig, EncoderConfig, Thresholds
from ratchet.config.evaluation import EvaluationConfig, TrainedControl
from ratchet.config.experiment import Config
from ratchet.config.generation import GenerationConfig
from ratchet.config.index import WORDS, IndexConfig
from ratchet.config.load import load_config, load_members
from ratchet.config.memory import MemoryConfig
from ratchet.config.missing import is_missing, missing_error
from ratchet.config.models import ModelConfig, ServeConfig, ThoughtsConfig
from ratchet.config.paths import PathText, PluginName, ScoreName, find_score, written
from ratchet.config.questions import HUB, SPLITS, LeakageConfig, QuestionsConfig, Split, SplitConfig
from ratchet.config.rewards import AuditConfig, CorrectnessConfig, FaithfulnessConfig, RewardsConfig, SelectConfig
from ratchet.config.rounds import RoundsConfig
from ratchet.config.sampling import SamplingConfig
from ratchet.config.section import Section
from ratchet.config.sources import McpConfig, PluginConfig, SourceConfig, Sources
from ratchet.config.sweep import SweepConfig
from ratchet.config.system import RoleConfig, SystemConfig
from ratchet.config.training import LoraConfig, PreferenceConfig, TrainingConfig
from ratchet.parsing import parse
