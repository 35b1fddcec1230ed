// Conversions: every type computes in the type Arithmetic gives and rounds once.
#pragma once

#include <cmath>

#include "emulator/core.h"

namespace AscendC::emulator {

inline float Arithmetic(float value) { return value; }
inline float Arithmetic(half value) { return float(value); }
inline float Arithmetic(bfloat16_t value) { return float(value); }
inline int64_t Arithmetic(int32_t value) { return value; }
inline int64_t Arithmetic(int16_t value) { return value; }
inline int64_t Arithmetic(int8_t value) { return value; }
inline int64_t Arithmetic(uint8_t value) { return value; }
inline int64_t Arithmetic(uint32_t value) { return value; }
inline int64_t Arithmetic(int64_t value) { return value; }

template <class T>
constexpr bool IsFloating() {
    return std::is_same_v<T, float> || std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t>;
}

// RequireCast refuses pairs and modes without a conversion instruction.
template <class D, class S>
void RequireCast(RoundMode mode) {
    constexpr bool pair = (std::is_same_v<S, float> && (IsFloating<D>() || std::is_same_v<D, int32_t> || std::is_same_v<D, int64_t> || std::is_same_v<D, int16_t>)) ||
                          (std::is_same_v<D, float> && (IsFloating<S>() || std::is_same_v<S, int32_t> || std::is_same_v<S, int64_t> || std::is_same_v<S, int16_t>)) ||
                          (std::is_same_v<S, half> && (std::is_same_v<D, int32_t> || std::is_same_v<D, int16_t> || std::is_same_v<D, int8_t> || std::is_same_v<D, uint8_t>)) ||
                          (std::is_same_v<D, half> && (std::is_same_v<S, int16_t> || std::is_same_v<S, int8_t> || std::is_same_v<S, uint8_t>)) ||
                          (std::is_same_v<S, int64_t> && std::is_same_v<D, int32_t>) || (std::is_same_v<S, int32_t> && (std::is_same_v<D, int64_t> || std::is_same_v<D, int16_t>));
    if constexpr (!pair) Fault("no conversion from %s to %s", NameOf<S>(), NameOf<D>());
    constexpr bool exact = IsFloating<D>() && (sizeof(D) > sizeof(S));
    if (!exact && mode == RoundMode::CAST_NONE && IsFloating<S>()) {
        Fault("the conversion from %s to %s rounds and needs a rounding mode", NameOf<S>(), NameOf<D>());
    }
    if (exact && mode != RoundMode::CAST_NONE) Fault("the conversion from %s to %s is exact: CAST_NONE", NameOf<S>(), NameOf<D>());
}

inline float Rounded(float value, RoundMode mode) {
    switch (mode) {
    case RoundMode::CAST_FLOOR: return std::floor(value);
    case RoundMode::CAST_CEIL: return std::ceil(value);
    case RoundMode::CAST_TRUNC: return std::trunc(value);
    case RoundMode::CAST_ROUND: return std::round(value);
    default: return std::nearbyint(value);
    }
}

template <class D>
D Saturated(float value) {
    constexpr double low = -double(uint64_t(1) << (8 * sizeof(D) - 1));
    constexpr double high = -low - 1;
    if (std::is_unsigned_v<D>) return D(value <= 0 ? 0 : value >= 2 * high + 1 ? 2 * high + 1 : value);
    if (std::isnan(value)) return 0;
    if (double(value) <= low) return D(uint64_t(1) << (8 * sizeof(D) - 1));
    if (double(value) >= high) return D((uint64_t(1) << (8 * sizeof(D) - 1)) - 1);
    return D(value);
}

template <class D, class S>
D Converted(S value, RoundMode mode) {
    if constexpr (IsFloating<D>()) return D(float(Arithmetic(value)));
    else if constexpr (IsFloating<S>()) return Saturated<D>(Rounded(float(value), mode));
    else return D(value);
}

}  // namespace AscendC::emulator
