// The helpers of std::map and std::set that libstdc++.so keeps compiled, as translated code.
//
// Promises: red-black trees with the layout of bits/stl_tree.h: header with parent = root, left = first, right = last.
// Must never: be compiled without the pass; it works on nodes in the store.
#include <utility>

#include <bits/stl_tree.h>

namespace std _GLIBCXX_VISIBILITY(default) {
_GLIBCXX_BEGIN_NAMESPACE_VERSION

using Node = _Rb_tree_node_base;

_GLIBCXX_PURE Node *_Rb_tree_increment(Node *node) throw() {
    if (node->_M_right) {
        node = node->_M_right;
        while (node->_M_left) node = node->_M_left;
        return node;
    }
    Node *above = node->_M_parent;
    while (node == above->_M_right) {
        node = above;
        above = above->_M_parent;
    }
    // At the header of a tree whose root has no right side, node already is the answer.
    return node->_M_right != above ? above : node;
}

_GLIBCXX_PURE Node *_Rb_tree_decrement(Node *node) throw() {
    if (node->_M_color == _S_red && node->_M_parent->_M_parent == node) return node->_M_right; // the header
    if (node->_M_left) {
        node = node->_M_left;
        while (node->_M_right) node = node->_M_right;
        return node;
    }
    Node *above = node->_M_parent;
    while (node == above->_M_left) {
        node = above;
        above = above->_M_parent;
    }
    return above;
}

_GLIBCXX_PURE const Node *_Rb_tree_increment(const Node *node) throw() {
    return _Rb_tree_increment(const_cast<Node *>(node));
}
_GLIBCXX_PURE const Node *_Rb_tree_decrement(const Node *node) throw() {
    return _Rb_tree_decrement(const_cast<Node *>(node));
}

// Puts `up`, a child of `down`, in its place; `toward` says on which side `up` was.
static void rotate(Node *down, bool left_child, Node *&root) {
    Node *up = left_child ? down->_M_left : down->_M_right;
    Node *between = left_child ? up->_M_right : up->_M_left;
    (left_child ? down->_M_left : down->_M_right) = between;
    if (between) between->_M_parent = down;
    up->_M_parent = down->_M_parent;
    if (down == root)
        root = up;
    else if (down == down->_M_parent->_M_left)
        down->_M_parent->_M_left = up;
    else
        down->_M_parent->_M_right = up;
    (left_child ? up->_M_right : up->_M_left) = down;
    down->_M_parent = up;
}

void _Rb_tree_insert_and_rebalance(const bool left, Node *node, Node *parent, Node &header) throw() {
    Node *&root = header._M_parent;
    node->_M_parent = parent;
    node->_M_left = node->_M_right = nullptr;
    node->_M_color = _S_red;
    if (left) {
        parent->_M_left = node; // also the first, when the parent is the header
        if (parent == &header) {
            header._M_parent = node;
            header._M_right = node;
        } else if (parent == header._M_left) {
            header._M_left = node;
        }
    } else {
        parent->_M_right = node;
        if (parent == header._M_right) header._M_right = node;
    }
    while (node != root && node->_M_parent->_M_color == _S_red) {
        Node *above = node->_M_parent, *top = above->_M_parent;
        bool above_is_left = above == top->_M_left;
        Node *uncle = above_is_left ? top->_M_right : top->_M_left;
        if (uncle && uncle->_M_color == _S_red) {
            above->_M_color = uncle->_M_color = _S_black;
            top->_M_color = _S_red;
            node = top;
            continue;
        }
        if (node == (above_is_left ? above->_M_right : above->_M_left)) {
            rotate(above, !above_is_left, root);
            node = above;
            above = node->_M_parent;
        }
        above->_M_color = _S_black;
        top->_M_color = _S_red;
        rotate(top, above_is_left, root);
    }
    root->_M_color = _S_black;
}

// After a black node went away above `node` (which may be null), on its side of `above`.
static void restore_blackness(Node *node, Node *above, Node *&root) {
    while (node != root && (!node || node->_M_color == _S_black)) {
        bool is_left = node == above->_M_left;
        auto near = [&](Node *of) -> Node *& { return is_left ? of->_M_left : of->_M_right; };
        auto far = [&](Node *of) -> Node *& { return is_left ? of->_M_right : of->_M_left; };
        Node *sibling = far(above);
        if (sibling->_M_color == _S_red) {
            sibling->_M_color = _S_black;
            above->_M_color = _S_red;
            rotate(above, !is_left, root);
            sibling = far(above);
        }
        auto black = [](Node *of) { return !of || of->_M_color == _S_black; };
        if (black(near(sibling)) && black(far(sibling))) {
            sibling->_M_color = _S_red;
            node = above;
            above = above->_M_parent;
            continue;
        }
        if (black(far(sibling))) {
            near(sibling)->_M_color = _S_black;
            sibling->_M_color = _S_red;
            rotate(sibling, is_left, root);
            sibling = far(above);
        }
        sibling->_M_color = above->_M_color;
        above->_M_color = _S_black;
        if (far(sibling)) far(sibling)->_M_color = _S_black;
        rotate(above, !is_left, root);
        break;
    }
    if (node) node->_M_color = _S_black;
}

static void replace_child(Node *parent, Node *old, Node *fresh, Node *&root) {
    if (old == root)
        root = fresh;
    else if (parent->_M_left == old)
        parent->_M_left = fresh;
    else
        parent->_M_right = fresh;
}

static Node *outermost(Node *node, bool left) {
    while (Node *next = left ? node->_M_left : node->_M_right) node = next;
    return node;
}

Node *_Rb_tree_rebalance_for_erase(Node *const gone, Node &header) throw() {
    Node *&root = header._M_parent;
    Node *child, *above;
    _Rb_tree_color lost = gone->_M_color;
    if (gone->_M_left && gone->_M_right) {
        // Its successor takes its place, links and colour.
        Node *next = outermost(gone->_M_right, true);
        lost = next->_M_color;
        child = next->_M_right;
        above = next == gone->_M_right ? next : next->_M_parent;
        if (next != gone->_M_right) {
            next->_M_parent->_M_left = child;
            if (child) child->_M_parent = next->_M_parent;
            next->_M_right = gone->_M_right;
            gone->_M_right->_M_parent = next;
        }
        next->_M_left = gone->_M_left;
        gone->_M_left->_M_parent = next;
        replace_child(gone->_M_parent, gone, next, root);
        next->_M_parent = gone->_M_parent;
        next->_M_color = gone->_M_color;
    } else {
        child = gone->_M_left ? gone->_M_left : gone->_M_right;
        above = gone->_M_parent;
        if (child) child->_M_parent = above;
        bool first = header._M_left == gone, last = header._M_right == gone;
        replace_child(above, gone, child, root);
        if (first) header._M_left = child ? outermost(child, true) : above;
        if (last) header._M_right = child ? outermost(child, false) : above;
    }
    if (lost == _S_black) restore_blackness(child, above, root);
    return gone;
}

_GLIBCXX_END_NAMESPACE_VERSION
} // namespace std
