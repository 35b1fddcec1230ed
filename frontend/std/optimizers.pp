// optimizers.pp: optimizers work on one element of a parameter. The first two
// arguments of construct are the element and its gradient; the others are
// scalars that carry the cell's argument or member of the same name, which the
// runtime computes for every step and which may differ between groups of
// parameters. A buffer is kept for every element.

// SGD with the momentum and weight decay of PyTorch: both work on the gradient.
cell SGD(lr: schedule, momentum: float = 0, weight_decay: float = 0) {
    has_momentum = momentum != 0
    has_decay    = weight_decay != 0
    if has_momentum {
        buffer velocity: f32[] = zeros()
    }
    construct(weight, gradient, lr, weight_decay) {
        if has_decay {
            gradient = gradient + weight_decay * weight
        }
        if has_momentum {
            velocity = momentum * velocity + gradient
            gradient = velocity
        }
        return weight - lr * gradient
    }
}

// Adam (Kingma and Ba, 2015); weight decay works on the gradient.
cell Adam(lr: schedule, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0) {
    buffer m: f32[] = zeros()
    buffer v: f32[] = zeros()
    correction1 = bias_correction(beta1)
    correction2 = bias_correction(beta2)
    has_decay   = weight_decay != 0
    construct(weight, gradient, lr, weight_decay, correction1, correction2) {
        if has_decay {
            gradient = gradient + weight_decay * weight
        }
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * (gradient * gradient)
        return weight - lr * (m / correction1) / (sqrt(v / correction2) + eps)
    }
}

// AdamW (Loshchilov and Hutter, 2019): weight decay works on the weight, before
// the step.
cell AdamW(lr: schedule, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01) {
    buffer m: f32[] = zeros()
    buffer v: f32[] = zeros()
    correction1 = bias_correction(beta1)
    correction2 = bias_correction(beta2)
    construct(weight, gradient, lr, weight_decay, correction1, correction2) {
        weight = weight * (1 - lr * weight_decay)
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * (gradient * gradient)
        return weight - lr * (m / correction1) / (sqrt(v / correction2) + eps)
    }
}
