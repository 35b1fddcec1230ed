// Scalar types, address-space words and enumerations of the kernel language.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#define __aicore__
#define __global__
#define __gm__
#define __ubuf__
#define __vector__
#define __cube__

using GM_ADDR = uint8_t*;

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };
enum event_t { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };
enum KernelType { KERNEL_TYPE_AIV_ONLY, KERNEL_TYPE_AIC_ONLY, KERNEL_TYPE_MIX_AIC_1_2 };

namespace AscendC::emulator {

inline uint32_t BitsOf(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float FloatOf(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// HalfBits rounds to the nearest half, ties to even.
inline uint16_t HalfBits(float value) {
    const uint32_t bits = BitsOf(value);
    const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (magnitude < 0x38800000) {
        // A subnormal half: adding 0.5 lets the float adder round at bit 2^-24.
        const float shifted = FloatOf(magnitude) + 0.5f;
        return uint16_t(sign | (BitsOf(shifted) - BitsOf(0.5f)));
    }
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}

inline float HalfValue(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 0x1f;
    const uint32_t mantissa = half & 0x3ff;
    if (exponent == 0) {
        const float magnitude = float(mantissa) * 0x1p-24f;
        return FloatOf(BitsOf(magnitude) | sign);
    }
    if (exponent == 31) return FloatOf(sign | 0x7f800000 | (mantissa << 13));
    return FloatOf(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t BrainBits(float value) {
    const uint32_t bits = BitsOf(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace AscendC::emulator

// Each operation on half rounds once, because it is computed in float and converted back.
struct half {
    uint16_t bits;
    half() = default;
    half(float value) : bits(AscendC::emulator::HalfBits(value)) {}
    operator float() const { return AscendC::emulator::HalfValue(bits); }
};

struct bfloat16_t {
    uint16_t bits;
    bfloat16_t() = default;
    explicit bfloat16_t(float value) : bits(AscendC::emulator::BrainBits(value)) {}
    explicit operator float() const { return AscendC::emulator::FloatOf(uint32_t(bits) << 16); }
};

namespace AscendC {

enum class TPosition { GM, VECIN, VECOUT, VECCALC, A1, A2, B1, B2, CO1, CO2 };
using QuePosition = TPosition;

enum class HardEvent {
    MTE2_V, V_MTE2, V_MTE3, MTE3_V, V_S, S_V, MTE2_S, S_MTE2, MTE3_S, S_MTE3, MTE2_MTE3, MTE3_MTE2, V_V, MAX
};

enum class RoundMode { CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };
enum class CMPMODE { LT, GT, EQ, LE, GE, NE };
enum class SELMODE { VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class CubeFormat { ND, NZ, ZN, ZZ, NN, VECTOR, SCALAR };
enum class CacheLine : uint64_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

using TEventID = int8_t;

}  // namespace AscendC
