"""OpenTelemetry traces and metrics, loaded only if enabled: its packages are an extra."""

from slowtok.config.settings import Settings
from slowtok.proxy.outputs.sink import Sink
from slowtok.proxy.runtime.background_writer import BackgroundWriter

NEEDS = "needs packages that are not here: pip install 'slowtok[otel]'"


def open_otel(settings: Settings) -> tuple[Sink, BackgroundWriter[object]]:
    """Return the sink that exports traces and metrics to `otlp_endpoint`, and its writer to close.

    Raises:
        SettingsError: the extra is not installed, or an OTEL_* variable is invalid.
    """
    try:
        from slowtok.proxy.outputs.otel.sink import Otel  # noqa: PLC0415 - an extra
    except ImportError:
        raise settings.fault("otlp_endpoint", NEEDS) from None
    try:
        otel = Otel(settings.otlp_endpoint)
    except Exception as error:  # noqa: BLE001 - the library's own words on a variable that it cannot use
        raise settings.fault("otlp_endpoint", f"{type(error).__name__}: {error}") from None
    return otel, otel.writer
