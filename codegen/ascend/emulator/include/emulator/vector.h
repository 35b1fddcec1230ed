// Vector calls: contiguous ("level 2", with a count) and strided ("level 0",
// with mask and repeats).
#pragma once

#include <cmath>

#include "emulator/arithmetic.h"
#include "emulator/pipe.h"

namespace AscendC {

struct BinaryRepeatParams {
    BinaryRepeatParams() = default;
    BinaryRepeatParams(uint8_t dstBlock, uint8_t aBlock, uint8_t bBlock, uint8_t dstRepeat, uint8_t aRepeat, uint8_t bRepeat)
        : dstBlkStride(dstBlock), src0BlkStride(aBlock), src1BlkStride(bBlock), dstRepStride(dstRepeat), src0RepStride(aRepeat),
          src1RepStride(bRepeat) {}
    uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;   // 32-byte units
    uint8_t dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
};

namespace emulator {

constexpr uint32_t kRepeatBytes = 256;

// Operands of one contiguous call: reads are checked before the write is noted.
template <class D>
struct VectorCall {
    VectorCall(const char* call, int64_t count) : count(count) {
        Begin(call, PIPE_V);
        RequireVectorCore();
        if (count <= 0) Fault("a count of %lld", (long long)count);
    }
    template <class S>
    const S* Read(const LocalTensor<S>& source, const LocalTensor<D>& destination) {
        RequireAligned(source.view());
        RequireSameOrApart(destination.view(), uint64_t(count) * sizeof(D), source.view(), uint64_t(count) * sizeof(S));
        return reinterpret_cast<const S*>(ReadLocal(source.view(), uint64_t(count) * sizeof(S), sizeof(S)));
    }
    D* Write(const LocalTensor<D>& destination) {
        RequireAligned(destination.view());
        return reinterpret_cast<D*>(WriteLocal(destination.view(), uint64_t(count) * sizeof(D)));
    }
    int64_t count;
};

template <class T, class F>
void Unary(const char* call, const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t count, F f) {
    VectorCall<T> op(call, count);
    const T* x = op.Read(src, dst);
    T* y = op.Write(dst);
    for (int64_t i = 0; i < count; i++) y[i] = T(f(x[i]));
}

template <class T, class F>
void Binary(const char* call, const LocalTensor<T>& dst, const LocalTensor<T>& a, const LocalTensor<T>& b, int64_t count, F f) {
    VectorCall<T> op(call, count);
    const T* x = op.Read(a, dst);
    const T* y = op.Read(b, dst);
    T* z = op.Write(dst);
    for (int64_t i = 0; i < count; i++) z[i] = T(f(x[i], y[i]));
}

// Strided runs a binary operation on repeat rows of 8 blocks, lane by lane.
template <class T, class F>
void Strided(const char* call, const LocalTensor<T>& dst, const LocalTensor<T>& a, const LocalTensor<T>& b, uint64_t mask,
             uint8_t repeat, const BinaryRepeatParams& p, F f) {
    Begin(call, PIPE_V);
    RequireVectorCore();
    const uint64_t lanes = kRepeatBytes / sizeof(T);
    const uint64_t perBlock = kBlockBytes / sizeof(T);
    if (mask == 0 || mask > lanes) Fault("mask %llu is not in 1..%llu", (unsigned long long)mask, (unsigned long long)lanes);
    if (repeat == 0) Fault("a repeat of 0");
    RequireAligned(dst.view());
    RequireAligned(a.view());
    RequireAligned(b.view());
    const auto at = [](const LocalTensor<T>& tensor, uint64_t blocks, uint64_t bytes) {
        View part = tensor.view();
        if (blocks * kBlockBytes + bytes > part.bytes) {
            Fault("%llu bytes at %llu are beyond the tensor of %u bytes", (unsigned long long)bytes,
                  (unsigned long long)(blocks * kBlockBytes), part.bytes);
        }
        part.offset += uint32_t(blocks * kBlockBytes);
        part.bytes -= uint32_t(blocks * kBlockBytes);
        return part;
    };
    for (uint64_t row = 0; row < repeat; row++) {
        for (uint64_t block = 0; block * perBlock < mask; block++) {
            const uint64_t count = mask - block * perBlock < perBlock ? mask - block * perBlock : perBlock;
            const uint64_t bytes = count * sizeof(T);
            const T* x = reinterpret_cast<const T*>(
                ReadLocal(at(a, row * p.src0RepStride + block * p.src0BlkStride, bytes), bytes, sizeof(T)));
            const T* y = reinterpret_cast<const T*>(
                ReadLocal(at(b, row * p.src1RepStride + block * p.src1BlkStride, bytes), bytes, sizeof(T)));
            T* z = reinterpret_cast<T*>(WriteLocal(at(dst, row * p.dstRepStride + block * p.dstBlkStride, bytes), bytes));
            for (uint64_t i = 0; i < count; i++) z[i] = T(f(x[i], y[i]));
        }
    }
}

template <class T>
bool Compared(T a, T b, CMPMODE mode) {
    switch (mode) {
    case CMPMODE::LT: return a < b;
    case CMPMODE::GT: return a > b;
    case CMPMODE::EQ: return a == b;
    case CMPMODE::LE: return a <= b;
    case CMPMODE::GE: return a >= b;
    case CMPMODE::NE: return a != b;
    }
    return false;
}

template <class T, class F>
void CompareInto(const char* call, const LocalTensor<uint8_t>& dst, const LocalTensor<T>& src, uint32_t count, F f) {
    Begin(call, PIPE_V);
    RequireVectorCore();
    RequireType<T, float, half>();
    if (count == 0 || count * sizeof(T) % kRepeatBytes != 0) {
        Fault("%llu bytes is not a positive multiple of 256", (unsigned long long)(uint64_t(count) * sizeof(T)));
    }
    RequireAligned(dst.view());
    RequireAligned(src.view());
    uint64_t initialised = 0;
    const T* x = reinterpret_cast<const T*>(ReadLocalPrefix(src.view(), uint64_t(count) * sizeof(T), sizeof(T), &initialised));
    uint8_t* mask = WriteLocal(dst.view(), count / 8);
    for (uint32_t i = 0; i < count; i += 8) {
        uint8_t bits = 0;
        for (uint32_t lane = 0; lane < 8 && (i + lane) * sizeof(T) < initialised; lane++) {
            if (f(i + lane, x[i + lane])) bits |= uint8_t(1u << lane);
        }
        mask[i / 8] = bits;
    }
}

}  // namespace emulator

#define EMULATOR_BINARY(Name, expression, ...)                                                                            \
    template <class T>                                                                                                    \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& a, const LocalTensor<T>& b, const int32_t& count) {        \
        emulator::Binary(#Name, dst, a, b, count, [](T x, T y) {                                                          \
            emulator::RequireType<T, __VA_ARGS__>();                                                                      \
            return expression;                                                                                            \
        });                                                                                                               \
    }                                                                                                                     \
    template <class T>                                                                                                    \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& a, const LocalTensor<T>& b, uint64_t mask,                 \
              const uint8_t repeat, const BinaryRepeatParams& params) {                                                   \
        emulator::Strided(#Name, dst, a, b, mask, repeat, params, [](T x, T y) {                                          \
            emulator::RequireType<T, __VA_ARGS__>();                                                                      \
            return expression;                                                                                            \
        });                                                                                                               \
    }
EMULATOR_BINARY(Add, emulator::Arithmetic(x) + emulator::Arithmetic(y), float, half, int32_t, int16_t)
EMULATOR_BINARY(Sub, emulator::Arithmetic(x) - emulator::Arithmetic(y), float, half, int32_t, int16_t)
EMULATOR_BINARY(Mul, emulator::Arithmetic(x) * emulator::Arithmetic(y), float, half, int32_t, int16_t)
EMULATOR_BINARY(Div, emulator::Arithmetic(x) / emulator::Arithmetic(y), float, half)
EMULATOR_BINARY(Max, emulator::Arithmetic(x) > emulator::Arithmetic(y) ? x : y, float, half, int32_t, int16_t)
EMULATOR_BINARY(Min, emulator::Arithmetic(x) < emulator::Arithmetic(y) ? x : y, float, half, int32_t, int16_t)
#undef EMULATOR_BINARY

#define EMULATOR_SCALAR(Name, expression, ...)                                                                            \
    template <class T>                                                                                                    \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, const int32_t& count) {              \
        const T y = scalar;                                                                                               \
        emulator::Unary(#Name, dst, src, count, [y](T x) {                                                                \
            emulator::RequireType<T, __VA_ARGS__>();                                                                      \
            return expression;                                                                                            \
        });                                                                                                               \
    }
EMULATOR_SCALAR(Adds, emulator::Arithmetic(x) + emulator::Arithmetic(y), float, half, int32_t, int16_t)
EMULATOR_SCALAR(Muls, emulator::Arithmetic(x) * emulator::Arithmetic(y), float, half, int32_t, int16_t)
EMULATOR_SCALAR(Maxs, emulator::Arithmetic(x) > emulator::Arithmetic(y) ? x : y, float, half, int32_t, int16_t)
EMULATOR_SCALAR(Mins, emulator::Arithmetic(x) < emulator::Arithmetic(y) ? x : y, float, half, int32_t, int16_t)
EMULATOR_SCALAR(LeakyRelu, emulator::Arithmetic(x) > 0 ? emulator::Arithmetic(x) : emulator::Arithmetic(x) * emulator::Arithmetic(y), float, half)
#undef EMULATOR_SCALAR

#define EMULATOR_UNARY(Name, expression, ...)                                                                             \
    template <class T>                                                                                                    \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count) {                               \
        emulator::Unary(#Name, dst, src, count, [](T x) {                                                                 \
            emulator::RequireType<T, __VA_ARGS__>();                                                                      \
            return expression;                                                                                            \
        });                                                                                                               \
    }
EMULATOR_UNARY(Relu, emulator::Arithmetic(x) > 0 ? x : T(0), float, half, int32_t)
EMULATOR_UNARY(Exp, std::exp(emulator::Arithmetic(x)), float, half)
EMULATOR_UNARY(Ln, std::log(emulator::Arithmetic(x)), float, half)
EMULATOR_UNARY(Abs, std::fabs(emulator::Arithmetic(x)), float, half)
EMULATOR_UNARY(Sqrt, std::sqrt(emulator::Arithmetic(x)), float, half)
EMULATOR_UNARY(Rsqrt, 1.0f / std::sqrt(emulator::Arithmetic(x)), float, half)
EMULATOR_UNARY(Reciprocal, 1.0f / emulator::Arithmetic(x), float, half)
#undef EMULATOR_UNARY

// dst += src * scalar, rounded after the product as two vector instructions would.
template <class T>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, const int32_t& count) {
    emulator::VectorCall<T> op("Axpy", count);
    emulator::RequireType<T, float, half>();
    const T* x = op.Read(src, dst);
    const T* old = op.Read(dst, dst);
    T* y = op.Write(dst);
    for (int32_t i = 0; i < count; i++) y[i] = T(emulator::Arithmetic(old[i]) + emulator::Arithmetic(x[i]) * emulator::Arithmetic(scalar));
}

template <class T>
void MulAddDst(const LocalTensor<T>& dst, const LocalTensor<T>& a, const LocalTensor<T>& b, const int32_t& count) {
    emulator::VectorCall<T> op("MulAddDst", count);
    emulator::RequireType<T, float, half>();
    const T* x = op.Read(a, dst);
    const T* y = op.Read(b, dst);
    const T* old = op.Read(dst, dst);
    T* z = op.Write(dst);
    for (int32_t i = 0; i < count; i++) z[i] = T(emulator::Arithmetic(old[i]) + emulator::Arithmetic(x[i]) * emulator::Arithmetic(y[i]));
}

template <class T>
void Duplicate(const LocalTensor<T>& dst, const T& scalar, const int32_t& count) {
    emulator::VectorCall<T> op("Duplicate", count);
    emulator::RequireType<T, float, half, bfloat16_t, int32_t, uint32_t, int16_t, uint16_t>();
    T* y = op.Write(dst);
    for (int32_t i = 0; i < count; i++) y[i] = scalar;
}

template <class D, class S>
void Cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, const RoundMode& mode, const uint32_t count) {
    emulator::VectorCall<D> op("Cast", count);
    emulator::RequireCast<D, S>(mode);
    const S* x = op.Read(src, dst);
    D* y = op.Write(dst);
    // In place only narrowing is meaningful, and ascending order serves it.
    for (uint32_t i = 0; i < count; i++) y[i] = emulator::Converted<D>(x[i], mode);
}

template <class T>
void CompareScalar(const LocalTensor<uint8_t>& dst, const LocalTensor<T>& src, const T scalar, CMPMODE mode, uint32_t count) {
    emulator::CompareInto("CompareScalar", dst, src, count, [scalar, mode](uint32_t, T x) {
        return emulator::Compared(emulator::Arithmetic(x), emulator::Arithmetic(scalar), mode);
    });
}

template <class T>
void Compare(const LocalTensor<uint8_t>& dst, const LocalTensor<T>& a, const LocalTensor<T>& b, CMPMODE mode, uint32_t count) {
    uint64_t initialised = 0;
    emulator::Begin("Compare", PIPE_V);
    emulator::RequireAligned(b.view());
    const T* y = reinterpret_cast<const T*>(emulator::ReadLocalPrefix(b.view(), uint64_t(count) * sizeof(T), sizeof(T), &initialised));
    emulator::CompareInto("Compare", dst, a, count, [y, mode](uint32_t i, T x) {
        return emulator::Compared(emulator::Arithmetic(x), emulator::Arithmetic(y[i]), mode);
    });
}

namespace emulator {

template <class T>
const uint8_t* SelectMask(const LocalTensor<uint8_t>& mask, uint32_t count) {
    RequireType<T, float, half>();
    RequireAligned(mask.view());
    return ReadLocal(mask.view(), (count + 7) / 8, 1);
}

}  // namespace emulator

template <class T>
void Select(const LocalTensor<T>& dst, const LocalTensor<uint8_t>& mask, const LocalTensor<T>& a, const LocalTensor<T>& b, SELMODE mode,
            uint32_t count) {
    emulator::VectorCall<T> op("Select", count);
    if (mode != SELMODE::VSEL_TENSOR_TENSOR_MODE) emulator::Fault("two tensors need VSEL_TENSOR_TENSOR_MODE");
    const uint8_t* bits = emulator::SelectMask<T>(mask, count);
    const T* x = op.Read(a, dst);
    const T* y = op.Read(b, dst);
    T* z = op.Write(dst);
    for (uint32_t i = 0; i < count; i++) z[i] = bits[i / 8] >> (i % 8) & 1 ? x[i] : y[i];
}

template <class T>
void Select(const LocalTensor<T>& dst, const LocalTensor<uint8_t>& mask, const LocalTensor<T>& a, T b, SELMODE mode, uint32_t count) {
    emulator::VectorCall<T> op("Select", count);
    if (mode != SELMODE::VSEL_TENSOR_SCALAR_MODE) emulator::Fault("a tensor and a scalar need VSEL_TENSOR_SCALAR_MODE");
    const uint8_t* bits = emulator::SelectMask<T>(mask, count);
    const T* x = op.Read(a, dst);
    T* z = op.Write(dst);
    for (uint32_t i = 0; i < count; i++) z[i] = bits[i / 8] >> (i % 8) & 1 ? x[i] : b;
}

template <class T>
void CreateVecIndex(const LocalTensor<T>& dst, const T& first, uint32_t count) {
    emulator::VectorCall<T> op("CreateVecIndex", count);
    emulator::RequireType<T, float, half, int32_t, int16_t>();
    T* y = op.Write(dst);
    for (uint32_t i = 0; i < count; i++) y[i] = T(emulator::Arithmetic(first) + i);
}

}  // namespace AscendC
