// Virtual functions, virtual and multiple inheritance, dynamic_cast, typeid, covariant results, templates.
#include <cstdio>
#include <memory>
#include <tuple>
#include <typeinfo>
#include <vector>

struct Shape {
    int id;
    explicit Shape(int id) : id(id) {}
    virtual ~Shape() = default;
    virtual double area() const = 0;
    virtual Shape *copy() const = 0;
};
struct Named {
    long tag = 7;
    virtual ~Named() = default;
    virtual const char *name() const { return "named"; }
};
struct Square : Shape, Named {
    double side;
    Square(int id, double side) : Shape(id), side(side) {}
    double area() const override { return side * side; }
    Square *copy() const override { return new Square(*this); }
    const char *name() const override { return "square"; }
};
struct Circle : Shape {
    double radius;
    Circle(int id, double radius) : Shape(id), radius(radius) {}
    double area() const override { return 3.0 * radius * radius; }
    Circle *copy() const override { return new Circle(*this); }
};
struct Base {
    int value = 1;
    virtual ~Base() = default;
};
struct Left : virtual Base {
    int left = 2;
};
struct Right : virtual Base {
    int right = 3;
};
struct Diamond : Left, Right {
    int own = 4;
};

template <class T> static T sum(const std::vector<T> &values) {
    T total{};
    for (const T &value : values) total += value;
    return total;
}

int main() {
    std::vector<std::unique_ptr<Shape>> shapes;
    for (int i = 0; i < 6; i++) {
        if (i % 2)
            shapes.emplace_back(new Square(i, i + 0.5));
        else
            shapes.emplace_back(new Circle(i, i));
    }
    for (const auto &shape : shapes) {
        auto *square = dynamic_cast<Square *>(shape.get());
        auto *named = dynamic_cast<Named *>(shape.get());
        const Shape &plain = *shape;
        std::unique_ptr<Shape> copy(shape->copy());
        std::printf("%d %.2f %s %d %s\n", shape->id, copy->area(), square ? square->name() : "-", named != nullptr,
                    typeid(plain) == typeid(Circle) ? "circle" : "other");
        if (named) std::printf("%s %ld %d\n", named->name(), named->tag, dynamic_cast<Shape *>(named)->id);
    }
    Base *base = new Diamond;
    auto *left = dynamic_cast<Left *>(base);
    auto *right = dynamic_cast<Right *>(left);
    auto *diamond = dynamic_cast<Diamond *>(right);
    std::printf("%d %d %d %d %d\n", left->left, right->right, diamond->own, diamond->value,
                dynamic_cast<void *>(right) == static_cast<void *>(diamond));
    try {
        std::printf("%p\n", static_cast<void *>(&dynamic_cast<Diamond &>(*std::make_unique<Base>())));
    } catch (const std::bad_cast &) {
        std::printf("bad cast\n");
    }
    delete base;
    auto tuple = std::make_unique<std::tuple<int, double, long>>(1, 2.5, 3);
    std::get<1>(*tuple) *= 2;
    auto [a, b, c] = *tuple;
    std::printf("%d %.1f %ld %d %.1f\n", a, b, c, sum(std::vector<int>{1, 2, 3}), sum(std::vector<double>{.5, .5}));
}
