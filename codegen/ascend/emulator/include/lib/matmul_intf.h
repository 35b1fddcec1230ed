// Matmul: matrix products on the cube core, operands and result in global memory.
#pragma once

#include <vector>

#include "kernel_operator.h"

// TCubeTiling has the fields that a plain product needs; all others keep 0.
struct TCubeTiling {
    int32_t usedCoreNum = 0, M = 0, N = 0, Ka = 0, Kb = 0;
    int32_t singleCoreM = 0, singleCoreN = 0, singleCoreK = 0;
    int32_t baseM = 0, baseN = 0, baseK = 0;
    int32_t depthA1 = 0, depthB1 = 0, stepM = 0, stepN = 0;
    int32_t isBias = 0, transLength = 0, iterateOrder = 0, shareMode = 0;
    int32_t shareL1Size = 0, shareL0CSize = 0, shareUbSize = 0;
    int32_t batchM = 0, batchN = 0, singleBatchM = 0, singleBatchN = 0;
    int32_t stepKa = 0, stepKb = 0, depthAL1CacheUB = 0, depthBL1CacheUB = 0;
    int32_t dbL0A = 0, dbL0B = 0, dbL0C = 0;
};

inline uint8_t* GetSysWorkSpacePtr() { return nullptr; }

namespace AscendC {

template <TPosition position, CubeFormat format, class Type, bool transposed = false>
struct MatmulType {
    static_assert(position == TPosition::GM && format == CubeFormat::ND, "only row-major operands in global memory are emulated");
    using T = Type;
    static constexpr bool kTransposed = transposed;
};

template <class A, class B, class C, class Bias = C>
class Matmul {
public:
    using Input = typename A::T;
    using Output = typename C::T;

    void Init(const TCubeTiling* tiling, TPipe*) {
        emulator::Enter("REGIST_MATMUL_OBJ");
        emulator::RequireCubeCore();
        tiling_ = *tiling;
        Check();
        m_ = tiling_.singleCoreM;
        n_ = tiling_.singleCoreN;
        k_ = tiling_.singleCoreK;
        registered_ = true;
    }
    void SetTensorA(const GlobalTensor<Input>& a, bool transposed = false) {
        emulator::Enter("Matmul::SetTensorA");
        if (transposed && !A::kTransposed) emulator::Fault("the type of A was declared without transposition");
        a_ = a;
        transposeA_ = transposed;
    }
    void SetTensorB(const GlobalTensor<Input>& b, bool transposed = false) {
        emulator::Enter("Matmul::SetTensorB");
        if (transposed && !B::kTransposed) emulator::Fault("the type of B was declared without transposition");
        b_ = b;
        transposeB_ = transposed;
    }
    void SetTail(int m = -1, int n = -1, int k = -1) {
        emulator::Enter("Matmul::SetTail");
        if (m > tiling_.singleCoreM || n > tiling_.singleCoreN || k > tiling_.singleCoreK) {
            emulator::Fault("a tail of %d x %d x %d is more than the core's share %d x %d x %d", m, n, k, tiling_.singleCoreM,
                            tiling_.singleCoreN, tiling_.singleCoreK);
        }
        m_ = m > 0 ? m : m_;
        n_ = n > 0 ? n : n_;
        k_ = k > 0 ? k : k_;
    }
    // IterateAll writes the core's share of C, or adds to it when atomic is set.
    void IterateAll(const GlobalTensor<Output>& c, uint8_t atomic = 0) {
        emulator::Begin("Matmul::IterateAll", PIPE_FIX);
        if (!registered_) emulator::Fault("the object was not registered");
        if (atomic > 1) emulator::Fault("atomic mode %u is not emulated", unsigned(atomic));
        const std::vector<float> a = Load(a_, m_, k_, transposeA_ ? tiling_.M : tiling_.Ka, transposeA_);
        const std::vector<float> b = Load(b_, k_, n_, transposeB_ ? tiling_.Kb : tiling_.N, transposeB_);
        std::vector<float> row(n_);
        std::vector<Output> out(n_);
        for (int i = 0; i < m_; i++) {
            for (float& sum : row) sum = 0;
            for (int p = 0; p < k_; p++) {
                const float factor = a[size_t(i) * k_ + p];
                const float* right = &b[size_t(p) * n_];
                for (int j = 0; j < n_; j++) row[j] += factor * right[j];
            }
            for (int j = 0; j < n_; j++) out[j] = Output(row[j]);
            const uint64_t offset = uint64_t(i) * tiling_.N * sizeof(Output);
            const uint8_t* source = reinterpret_cast<const uint8_t*>(out.data());
            if (atomic) emulator::AddGlobal(c.region(), offset, source, n_ * sizeof(Output), Atomic());
            else emulator::StoreGlobal(c.region(), offset, source, n_ * sizeof(Output));
        }
    }
    void End() { registered_ = false; }

private:
    static constexpr emulator::AtomicType Atomic() {
        return std::is_same_v<Output, float> ? emulator::AtomicType::kFloat : emulator::AtomicType::kHalf;
    }

    // Load reads rows x columns elements with the given pitch, turned when transposed.
    static std::vector<float> Load(const GlobalTensor<Input>& source, int rows, int columns, int pitch, bool transposed) {
        std::vector<float> out(size_t(rows) * columns);
        const int lines = transposed ? columns : rows;
        const int length = transposed ? rows : columns;
        for (int line = 0; line < lines; line++) {
            const Input* from = reinterpret_cast<const Input*>(
                emulator::ReadGlobal(source.region(), uint64_t(line) * pitch * sizeof(Input), uint64_t(length) * sizeof(Input)));
            for (int i = 0; i < length; i++) {
                out[transposed ? size_t(i) * columns + line : size_t(line) * columns + i] = float(from[i]);
            }
        }
        return out;
    }

    void Check() const {
        const TCubeTiling& t = tiling_;
        const int64_t size = sizeof(Input);
        const int64_t fractal = 32 / size;
        using emulator::Fault;
        if (t.M <= 0 || t.N <= 0 || t.Ka <= 0 || t.Kb <= 0) Fault("a product of %d x %d x %d", t.M, t.N, t.Ka);
        if (t.Ka != t.Kb) Fault("Ka %d differs from Kb %d", t.Ka, t.Kb);
        if (t.singleCoreM <= 0 || t.singleCoreN <= 0 || t.singleCoreK <= 0 || t.singleCoreM > t.M || t.singleCoreN > t.N || t.singleCoreK > t.Ka) {
            Fault("the core's share %d x %d x %d is not within %d x %d x %d", t.singleCoreM, t.singleCoreN, t.singleCoreK, t.M, t.N, t.Ka);
        }
        if (t.baseM <= 0 || t.baseM % 16 || t.baseN <= 0 || t.baseN % 16 || t.baseK <= 0 || t.baseK % fractal) {
            Fault("base %d x %d x %d is not a multiple of 16 x 16 x %d", t.baseM, t.baseN, t.baseK, int(fractal));
        }
        if (t.dbL0A < 1 || t.dbL0A > 2 || t.dbL0B < 1 || t.dbL0B > 2 || t.dbL0C < 1 || t.dbL0C > 2) Fault("dbL0A, dbL0B and dbL0C are 1 or 2");
        Limit("L0A", int64_t(t.baseM) * t.baseK * size * t.dbL0A, 64 << 10);
        Limit("L0B", int64_t(t.baseK) * t.baseN * size * t.dbL0B, 64 << 10);
        Limit("L0C", int64_t(t.baseM) * t.baseN * 4 * t.dbL0C, 128 << 10);
        if (t.depthA1 < 1 || t.depthB1 < 1 || t.stepM < 1 || t.stepN < 1 || t.stepKa < 1 || t.stepKb < 1) Fault("depths and steps are at least 1");
        if (t.depthA1 % (t.stepM * t.stepKa) || t.depthB1 % (t.stepN * t.stepKb)) {
            Fault("depthA1 %d and depthB1 %d are not multiples of the steps %d x %d and %d x %d", t.depthA1, t.depthB1, t.stepM, t.stepKa,
                  t.stepN, t.stepKb);
        }
        Limit("L1", (int64_t(t.depthA1) * t.baseM * t.baseK + int64_t(t.depthB1) * t.baseK * t.baseN) * size, 512 << 10);
        if (t.usedCoreNum != emulator::BlockCount()) {
            Fault("usedCoreNum %d differs from the %lld blocks", t.usedCoreNum, (long long)emulator::BlockCount());
        }
    }
    static void Limit(const char* memory, int64_t bytes, int64_t limit) {
        if (bytes > limit) emulator::Fault("%lld bytes of %s, which has %lld", (long long)bytes, memory, (long long)limit);
    }

    TCubeTiling tiling_;
    GlobalTensor<Input> a_, b_;
    bool transposeA_ = false, transposeB_ = false, registered_ = false;
    int m_ = 0, n_ = 0, k_ = 0;
};

}  // namespace AscendC

#define REGIST_MATMUL_OBJ(pipe, workspace, object, tiling) (object).Init(tiling, pipe)
