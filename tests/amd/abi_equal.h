/* Whether two function types call each other's functions rightly: same number of arguments, each handed over alike. An
 * enum is the integer of its size, a handle (a pointer to a struct) is any pointer, and `void *` points to anything;
 * pointers to integers must agree in the size of the integer, and structs by value in their size. */
#ifndef HETCCL_TESTS_ABI_EQUAL_H
#define HETCCL_TESTS_ABI_EQUAL_H

#include <stddef.h>
#include <type_traits>

template <typename A, typename B, typename = void> struct Alike : std::false_type {};

template <typename T> using Bare = std::remove_cv_t<T>;
template <typename T> constexpr bool is_number = std::is_integral<T>::value || std::is_enum<T>::value;
template <typename T> constexpr bool is_opaque = std::is_void<T>::value || std::is_class<T>::value;

template <typename A, typename B>
struct Alike<A, B, std::enable_if_t<is_number<A> && is_number<B>>> : std::bool_constant<sizeof(A) == sizeof(B)> {};

template <typename A, typename B>
struct Alike<A, B, std::enable_if_t<std::is_floating_point<A>::value && std::is_floating_point<B>::value>>
    : std::bool_constant<sizeof(A) == sizeof(B)> {};

template <> struct Alike<void, void> : std::true_type {};

template <typename A, typename B>
struct Alike<A, B, std::enable_if_t<std::is_class<A>::value && std::is_class<B>::value>>
    : std::bool_constant<sizeof(A) == sizeof(B)> {};

/* What pointers point to. */
template <typename A, typename B, typename = void> struct Target : Alike<A, B> {};
template <typename A, typename B> struct Target<A, B, std::enable_if_t<is_opaque<A> || is_opaque<B>>>
    : std::bool_constant<std::is_void<A>::value || std::is_void<B>::value || (is_opaque<A> && is_opaque<B>)> {};

template <typename A, typename B>
struct Alike<A *, B *, std::enable_if_t<!std::is_function<A>::value && !std::is_function<B>::value>>
    : Target<Bare<A>, Bare<B>> {};

template <typename RA, typename... A, typename RB, typename... B>
struct Alike<RA (*)(A...), RB (*)(B...), std::enable_if_t<sizeof...(A) == sizeof...(B)>>
    : std::conjunction<Alike<RA, RB>, Alike<Bare<A>, Bare<B>>...> {};

/* The checker on types of its own, before anything is believed of it. */
struct Handle;
struct Id { char bytes[128]; };
struct Other { char bytes[128]; };
enum Number { ONE };
static_assert(Alike<Number (*)(Handle **, size_t), int (*)(void **, unsigned long)>::value, "handles and enums");
static_assert(Alike<void (*)(Id, const int *), void (*)(Other, Number *)>::value, "structs by value of one size");
static_assert(Alike<int (*)(void (*)(void *)), Number (*)(void (*)(Handle *))>::value, "functions as arguments");
static_assert(!Alike<int (*)(void *), int (*)(void *, int)>::value, "another number of arguments");
static_assert(!Alike<int (*)(void *, int), int (*)(void *, size_t)>::value, "another width");
static_assert(!Alike<int (*)(void *), int (*)(size_t)>::value, "a pointer and a number");
static_assert(!Alike<int (*)(int *), int (*)(size_t *)>::value, "pointers to other widths");
static_assert(!Alike<int (*)(void **), int (*)(int *)>::value, "a pointer to a pointer, and to a number");
static_assert(!Alike<int (*)(Id), int (*)(void *)>::value, "a struct and its address");
static_assert(!Alike<int (*)(float), int (*)(int)>::value, "a float and an int");
static_assert(!Alike<const char *(*)(int), int (*)(int)>::value, "another result");

#endif
