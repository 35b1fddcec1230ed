// Reductions of one contiguous tensor to its first element.
#pragma once

#include "emulator/vector.h"

namespace AscendC {

namespace emulator {

// RequireWork refuses a work tensor smaller than one partial result per repeat.
template <class T>
void RequireWork(const LocalTensor<T>& work, int64_t count, uint64_t perRepeat) {
    const uint64_t lanes = kRepeatBytes / sizeof(T);
    const uint64_t repeats = (uint64_t(count) + lanes - 1) / lanes;
    const uint64_t need = (repeats * perRepeat * sizeof(T) + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    RequireAligned(work.view());
    if (work.view().bytes < need) {
        Fault("the work tensor has %u bytes, the reduction of %lld elements needs %llu", work.view().bytes, (long long)count,
              (unsigned long long)need);
    }
    WriteLocal(work.view(), need);
}

// PairwiseSum adds halves first, as the vector unit's tree does.
template <class T>
float PairwiseSum(const T* x, int64_t count) {
    if (count <= 8) {
        float sum = 0;
        for (int64_t i = 0; i < count; i++) sum += Arithmetic(x[i]);
        return sum;
    }
    const int64_t half = count / 2;
    return PairwiseSum(x, half) + PairwiseSum(x + half, count - half);
}

template <class T, class F>
void Extreme(const char* call, const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work, int32_t count,
             bool withIndex, F better) {
    Begin(call, PIPE_V);
    RequireVectorCore();
    RequireType<T, float, half>();
    if (count <= 0) Fault("a count of %d", count);
    RequireAligned(src.view());
    RequireAligned(dst.view());
    RequireSameOrApart(work.view(), work.view().bytes, src.view(), uint64_t(count) * sizeof(T));
    const T* x = reinterpret_cast<const T*>(ReadLocal(src.view(), uint64_t(count) * sizeof(T), sizeof(T)));
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++) {
        if (better(Arithmetic(x[i]), Arithmetic(x[best]))) best = i;
    }
    const T value = x[best];
    RequireWork(work, count, 2);
    uint8_t* y = WriteLocal(dst.view(), (withIndex ? 2 : 1) * sizeof(T));
    std::memcpy(y, &value, sizeof(T));
    if (withIndex) std::memcpy(y + sizeof(T), &best, sizeof(T));   // the index as an integer of the element's size
}

}  // namespace emulator

template <class T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work, const int32_t count) {
    emulator::Begin("ReduceSum", PIPE_V);
    emulator::RequireVectorCore();
    emulator::RequireType<T, float, half>();
    if (count <= 0) emulator::Fault("a count of %d", count);
    emulator::RequireAligned(src.view());
    emulator::RequireAligned(dst.view());
    emulator::RequireSameOrApart(work.view(), work.view().bytes, src.view(), uint64_t(count) * sizeof(T));
    const T* x = reinterpret_cast<const T*>(emulator::ReadLocal(src.view(), uint64_t(count) * sizeof(T), sizeof(T)));
    const T sum = T(emulator::PairwiseSum(x, count));
    emulator::RequireWork(work, count, 1);
    std::memcpy(emulator::WriteLocal(dst.view(), sizeof(T)), &sum, sizeof(T));
}

template <class T>
void ReduceMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work, const int32_t count, bool withIndex = false) {
    emulator::Extreme("ReduceMax", dst, src, work, count, withIndex, [](auto a, auto b) { return a > b; });
}

template <class T>
void ReduceMin(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work, const int32_t count, bool withIndex = false) {
    emulator::Extreme("ReduceMin", dst, src, work, count, withIndex, [](auto a, auto b) { return a < b; });
}

}  // namespace AscendC
