// The helpers of std::list that libstdc++.so keeps compiled, as translated code.
//
// Must never: be compiled without the pass; it works on nodes in the store.
#include <list>

namespace std _GLIBCXX_VISIBILITY(default) {
_GLIBCXX_BEGIN_NAMESPACE_VERSION
namespace __detail {

void _List_node_base::_M_hook(_List_node_base *const before) noexcept {
    _M_next = before;
    _M_prev = before->_M_prev;
    before->_M_prev->_M_next = this;
    before->_M_prev = this;
}

void _List_node_base::_M_unhook() noexcept {
    _M_prev->_M_next = _M_next;
    _M_next->_M_prev = _M_prev;
}

void _List_node_base::_M_transfer(_List_node_base *const first, _List_node_base *const last) noexcept {
    if (this == last) return;
    _List_node_base *final = last->_M_prev, *before = first->_M_prev, *mine = _M_prev;
    before->_M_next = last;
    last->_M_prev = before;
    mine->_M_next = first;
    first->_M_prev = mine;
    final->_M_next = this;
    _M_prev = final;
}

void _List_node_base::_M_reverse() noexcept {
    _List_node_base *node = this;
    do {
        _List_node_base *next = node->_M_next;
        node->_M_next = node->_M_prev;
        node->_M_prev = next;
        node = next;
    } while (node != this);
}

// A ring that was in `from` is now in `to`; both may have been empty.
static void adopt(_List_node_base &to, _List_node_base *next, _List_node_base *previous, const _List_node_base *from) {
    if (next == from) {
        to._M_next = to._M_prev = &to;
        return;
    }
    to._M_next = next;
    to._M_prev = previous;
    next->_M_prev = previous->_M_next = &to;
}

void _List_node_base::swap(_List_node_base &one, _List_node_base &other) noexcept {
    _List_node_base *next = one._M_next, *previous = one._M_prev;
    adopt(one, other._M_next, other._M_prev, &other);
    adopt(other, next, previous, &one);
}

} // namespace __detail
_GLIBCXX_END_NAMESPACE_VERSION
} // namespace std
