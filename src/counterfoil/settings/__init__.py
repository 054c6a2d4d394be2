"""Settings: file, environment and flags into one validated object.

``Settings(...)`` uses only its arguments; only ``load_settings`` reads files and the environment.
"""

from counterfoil.settings.load import CLIENT_VARIABLES, SettingsError, load_settings
from counterfoil.settings.model import SettingDescription, Settings, describe_settings
from counterfoil.settings.values import ROLES, ApiKey, Role, is_loopback, parse_api_keys

__all__ = [
    "CLIENT_VARIABLES",
    "ROLES",
    "ApiKey",
    "Role",
    "SettingDescription",
    "Settings",
    "SettingsError",
    "describe_settings",
    "is_loopback",
    "load_settings",
    "parse_api_keys",
]
