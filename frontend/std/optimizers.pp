// optimizers.pp: optimizers work on one element of a parameter. The first two
// arguments of construct are the element and its gradient; the others are
// scalars that carry the cell's argument of the same name.

cell SGD(lr: float) {
    construct(weight, gradient, lr) {
        return weight - lr * gradient
    }
}
