"""Contrast of colours."""


def contrast(a: str, b: str) -> float:
    """Return the WCAG 2 contrast ratio of two "#rrggbb" colours, 1 to 21 (https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio)."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
